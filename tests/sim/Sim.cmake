# The scheduler's state belongs to all fibers, which ThreadSanitizer takes for threads.
if(HEDDLE_SANITIZE STREQUAL thread)
  set_source_files_properties(sim/fiber.cpp sim/universe.cpp PROPERTIES COMPILE_OPTIONS "-fno-sanitize=thread"
    SKIP_PRECOMPILE_HEADERS ON)
endif()
