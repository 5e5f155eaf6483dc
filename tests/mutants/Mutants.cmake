# Faults that a test must find (table.py). The drivers are linked from one set of objects; run.py compiles a small library for
# each fault.
file(GLOB parts CONFIGURE_DEPENDS sim/*.cpp)
list(FILTER parts EXCLUDE REGEX "(_test|/sim_backend)\\.cpp$")
add_library(heddle_mutant_parts OBJECT ${parts} mutants/driver.cpp mutants/steps.cpp mutants/own_steps.cpp)
target_link_libraries(heddle_mutant_parts PUBLIC heddle_test_support)
foreach(driver heddle_mutant_driver heddle_mutant_tsan_driver)
  add_executable(${driver})
  target_link_libraries(${driver} PRIVATE heddle_mutant_parts GTest::gtest ${CMAKE_DL_LIBS})
  set_target_properties(${driver} PROPERTIES ENABLE_EXPORTS ON)
endforeach()
target_link_options(heddle_mutant_tsan_driver PRIVATE -fsanitize=thread)

add_test(NAME mutants COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/mutants/run.py
  --source ${PROJECT_SOURCE_DIR} --scratch ${CMAKE_CURRENT_BINARY_DIR}/mutants
  --driver $<TARGET_FILE:heddle_mutant_driver> --tsan-driver $<TARGET_FILE:heddle_mutant_tsan_driver>
  -- ${CMAKE_CXX_COMPILER} -idirafter ${fmt_include})
set_tests_properties(mutants PROPERTIES LABELS mutants TIMEOUT 600 PROCESSORS 2 COST 100)
