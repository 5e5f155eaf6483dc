"""`heddle bench`: how long dispatch and combine take here, whether what they bring is right, and what the machine could
do at best. NumPy only; ranks are processes. bench/README.md says what is measured."""
