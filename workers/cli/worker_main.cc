// tidepool-worker: a process that owns one device. Started by `tidepool train`, or by hand to join a run.
#include <CLI/CLI.hpp>

#include "workers/build_info.h"
#include "workers/controller/launcher.h"
#include "workers/device/device_worker.h"

int main(int argc, char** argv) {
  using namespace tidepool::workers;
  CLI::App app("tidepool-worker: owns one device of a run (rollout and actor roles)");
  app.set_version_flag("--version", BuildInfo());
  app.require_subcommand(1);
  DeviceWorkerOptions options;
  int parent = 0;
  CLI::App* run = app.add_subcommand("run", "Attach to a run and serve it until it is over");
  run->add_option("--connect", options.address, "Address of the controller, host:port (see RUN/control.json)")
      ->required();
  run->add_option("--token-file", options.token_file, "RUN/security/device.token")->required();
  run->add_option("--run-id", options.run_id, "The run to join (see RUN/control.json)")->required();
  run->add_option("--place", options.place, "Worker place, 0 .. cluster.slots - 1; -1: any free one");
  run->add_option("--control-file", options.control_file,
                  "RUN/control.json, to find the controller again after its restart");
  run->add_option("--parent", parent, "Process whose death ends this one; 0: none");
  run->footer(
      "Example: tidepool-worker run --connect 127.0.0.1:40123 --token-file runs/x/security/device.token "
      "--run-id x");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  EndWithParent(parent);
  return RunDeviceWorker(options);
}
