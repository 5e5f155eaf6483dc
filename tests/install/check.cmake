# Installs BUILD into SCRATCH/prefix, builds the consumer beside it, runs it. Stops at the first step that fails.
file(REMOVE_RECURSE ${SCRATCH})
foreach(step IN ITEMS
    "--install|${BUILD}|--prefix|${SCRATCH}/prefix"
    "-S|${CMAKE_CURRENT_LIST_DIR}|-B|${SCRATCH}/build|-G|${GENERATOR}|-Dheddle_ROOT=${SCRATCH}/prefix"
    "--build|${SCRATCH}/build")
  string(REPLACE "|" ";" step "${step}")
  execute_process(COMMAND ${CMAKE_COMMAND} ${step} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
execute_process(COMMAND ${SCRATCH}/build/consumer COMMAND_ERROR_IS_FATAL ANY)
