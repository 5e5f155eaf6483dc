# Tests of the source tree, the installed package and the device code.
add_test(NAME layers COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/scripts/check_layers.py)
add_test(NAME layers.self_test COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/layers/check_layers_test.py)
set_tests_properties(layers layers.self_test PROPERTIES LABELS layers)

# A public header needs no other header before it and none of src/. fmt is searched last, where the system's headers are.
file(GLOB headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/include/heddle/*.hpp)
get_target_property(fmt_include ${HEDDLE_FMT} INTERFACE_INCLUDE_DIRECTORIES)
foreach(header IN LISTS headers)
  add_test(NAME header.${header} COMMAND ${CMAKE_CXX_COMPILER} -std=c++20 -fsyntax-only -Wall -Wextra -Wpedantic -Wshadow -Werror
    -I ${PROJECT_SOURCE_DIR}/include -idirafter ${fmt_include} -include ${header} -x c++ /dev/null)
  set_tests_properties(header.${header} PROPERTIES LABELS headers)
endforeach()

# A program of a few lines finds, builds against and runs with the installed package.
if(HEDDLE_INSTALL AND heddle/heddle.hpp IN_LIST headers)
  add_test(NAME install.consumer COMMAND ${CMAKE_COMMAND}
    -DBUILD=${PROJECT_BINARY_DIR} -DSCRATCH=${CMAKE_CURRENT_BINARY_DIR}/install -DGENERATOR=${CMAKE_GENERATOR}
    -P ${CMAKE_CURRENT_SOURCE_DIR}/install/check.cmake)
  set_tests_properties(install.consumer PROPERTIES LABELS install TIMEOUT 300)
endif()

# Every kernel that the library launches exists for every GPU that it is for.
file(GLOB kernel_list CONFIGURE_DEPENDS cuda/kernels.txt)
if(heddle_cuda AND kernel_list)
  string(REGEX MATCHALL "[0-9]+" gpus "${HEDDLE_CUDA_GPUS}")
  add_test(NAME cuda_kernels COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/scripts/list_kernels.py $<TARGET_FILE:heddle>
    --expect ${kernel_list} --gpus ${gpus})
  set_tests_properties(cuda_kernels PROPERTIES LABELS cuda)
endif()

include(mutants/Mutants.cmake)
add_test(NAME cuda_mutants.table COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/cuda/mutants/run.py --check)
set_tests_properties(cuda_mutants.table PROPERTIES LABELS mutants)
