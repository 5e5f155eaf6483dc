// Every build checks the numbers.
#include "layout/golden.hpp"
