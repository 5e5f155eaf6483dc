#include <heddle/heddle.hpp>

int main() { return 0; }
