// tidepool dashboard: a local page about the runs of a folder, until Ctrl-C.
#include <signal.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "core/base/hash.h"
#include "core/storage/run_directory.h"
#include "workers/board/board.h"
#include "workers/cli/command.h"
#include "workers/net/http_server.h"

namespace tidepool::workers {
namespace {

namespace fs = std::filesystem;

Status ServeDashboard(std::string root, int64_t port) {
  std::error_code error;
  if (port < 0 || port > 65535)
    return InvalidArgument("--port: " + std::to_string(port) +
                           "; a port is a number from 1 to 65535, 0: a free one");
  if (!fs::is_directory(root, error)) {
    return NotFound(root +
                    ": no such folder; name the folder that holds runs, or start one with `tidepool train "
                    "CONFIG`, which makes runs/");
  }
  // A run is shown in the folder that holds it.
  std::string page;  // query of the first page
  const fs::path whole = fs::canonical(root, error);
  if (fs::exists(storage::RunPaths(whole.string()).config(), error)) {
    page = "?run=" + PercentEncoded(whole.filename().string());
    root = whole.parent_path().string();
  }
  // Taken before the server's threads begin, so that they take none of these.
  sigset_t ends;
  sigemptyset(&ends);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&ends, signal);
  ::pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  TP_ASSIGN_OR_RETURN(const std::string key, RandomHex());
  Board board(root);
  TP_ASSIGN_OR_RETURN(const auto server, HttpServer::Start({.port = static_cast<uint16_t>(port),
                                                            .key_digest = Sha256Hex(key),
                                                            .open_paths = {"/"},
                                                            .threads = Board::kLooksMax + 1},
                                                           [&board](const HttpRequest& request) {
                                                             return board.Answer(request);
                                                           }));
  std::printf("Runs of %s, until Ctrl-C, for this machine's browsers:\n%s/%s#key=%s\n", root.c_str(),
              server->Url().c_str(), page.c_str(), key.c_str());
  std::printf(
      "The address holds a key: whoever has it, and can reach this machine's loopback, sees configs, samples "
      "and logs.\n");
  std::fflush(stdout);
  int signal = 0;
  ::sigwait(&ends, &signal);  // waits: the person ends it; that is what the command is for
  ::pthread_sigmask(SIG_UNBLOCK, &ends, nullptr);  // a second one ends it at once, whatever a disk does
  std::printf("ended\n");
  return OkStatus();
}

}  // namespace

void AddDashboardCommand(CLI::App& app, CommandContext& context) {
  struct Options {
    std::string root = "runs";
    int64_t port = 0;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "dashboard",
      "A local page that lists runs and shows live curves, slots, samples, logs and comparisons");
  command->add_option("dir", options->root, "Folder of runs, or a run; default: runs");
  command->add_option("--port", options->port, "Port on 127.0.0.1; default: a free one");
  command->footer("Example: tidepool dashboard --port 8800");
  command->callback([options, &context] {
    if (const Status done = ServeDashboard(options->root, options->port); !done.ok()) Fail(context, done);
  });
}

}  // namespace tidepool::workers
