# The commands of `tidepool` that look at things, in this process: no worker, no LibTorch, no network.
tidepool_test(cli_test
  SRCS ${CMAKE_CURRENT_LIST_DIR}/answer_statistics_test.cc ${CMAKE_CURRENT_LIST_DIR}/cli_doctor_test.cc ${CMAKE_CURRENT_LIST_DIR}/cli_inspect_test.cc
       ${CMAKE_CURRENT_LIST_DIR}/cli_memory_plan_test.cc ${CMAKE_CURRENT_LIST_DIR}/cli_run_lookup_test.cc
       ${CMAKE_CURRENT_LIST_DIR}/cli_runner.cc ${CMAKE_SOURCE_DIR}/tests/scheduler/sim_cluster.cc
       ${CMAKE_SOURCE_DIR}/tests/scheduler/sim_commands.cc ${CMAKE_SOURCE_DIR}/tests/scheduler/sim_jobs.cc
       ${CMAKE_SOURCE_DIR}/workers/build_info.cc ${CMAKE_SOURCE_DIR}/workers/cli/answer_progress.cc ${CMAKE_SOURCE_DIR}/workers/cli/answer_statistics.cc ${CMAKE_SOURCE_DIR}/workers/memory_plan.cc
       ${CMAKE_SOURCE_DIR}/workers/cli/doctor_command.cc ${CMAKE_SOURCE_DIR}/workers/cli/inspect_commands.cc
       ${CMAKE_SOURCE_DIR}/workers/cli/run_lookup.cc ${CMAKE_SOURCE_DIR}/workers/cli/run_status.cc
  DEPS tidepool_config tidepool_families tidepool_storage tidepool_observe tidepool_scheduler CLI11::CLI11)
# build_info.cc is compiled here as well; the real values belong to the program.
target_compile_definitions(cli_test PRIVATE TIDEPOOL_COMMIT="test" TIDEPOOL_VERSION="0.0.0")
