#pragma once
// Runs one command line of `tidepool` in this process.

#include <string>
#include <vector>

namespace tidepool::workers {

struct CliResult {
  int exit_code = 0;
  std::string out, err;
};

// The commands that need nothing but files: validate, config, status, report, check, samples, journal, runs,
// compare, prune, doctor, simulate, plan, slurm, k8s, the lists of what a config may name; and what generate
// and eval refuse before they start a worker.
CliResult RunCli(const std::vector<std::string>& words);

// A fresh folder under the test's temporary folder, removed with the object. Also becomes the current
// folder, because runs are looked for under runs/.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }
  // Makes missing folders of `name`.
  void Write(const std::string& name, const std::string& text) const;

 private:
  std::string path_, before_;
};

}  // namespace tidepool::workers
