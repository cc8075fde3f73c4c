#include "workers/controller/joined_host.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/base/json_fields.h"
#include "core/base/real_file_system.h"
#include "workers/net/join_service.h"

namespace tidepool::workers {
namespace {

namespace fs = std::filesystem;

std::string File(const std::string& dir) { return dir + "/joined.json"; }

}  // namespace

std::string IdentityDir(const std::string& dir, int64_t place) {
  return dir + "/place-" + std::to_string(place);
}

Status JoinHost(const std::string& file, const std::string& dir) {
  TP_ASSIGN_OR_RETURN(const std::vector<JoinToken> tokens, ReadJoinTokens(file));
  TP_ASSIGN_OR_RETURN(const auto before, ReadJoinedHost(dir));
  const JoinToken& first = tokens.front();
  JoinedHost joined = before.value_or(JoinedHost{});
  if (before && before->run_id != first.run_id)
    return FailedPrecondition(dir + ": is of run " + before->run_id + ", and the join token of run " +
                              first.run_id + "; name another folder");
  joined.run_id = first.run_id;
  joined.address = first.controller;
  joined.shared_memory = first.shared_memory;
  RealFileSystem disk;
  TP_RETURN_IF_ERROR(disk.MakeDirectories(dir));
  for (const JoinToken& token : tokens) {
    const std::string of_place = IdentityDir(dir, token.scope.place), role = Name(token.scope.role);
    // A token is good once: what it has got in a try that was cut off is used.
    const std::string came_by = of_place + "/join_token";
    const auto by = disk.ReadFile(came_by, 4096);
    const bool there = by.ok() && *by == token.id && ReadCredentials(of_place + "/" + role + ".token").ok();
    if (!there) {
      TP_RETURN_IF_ERROR(disk.RemoveTree(of_place));
      if (const Status come = Join(token, of_place); !come.ok())
        return come.At(token.name +
                       " (a token is good once; where it was used up: `tidepool join-token RUN --place=" +
                       std::to_string(token.scope.place) + "`)");
      TP_RETURN_IF_ERROR(disk.WriteFile(came_by, token.id));
    }
    std::erase_if(joined.places, [&](const JoinedPlace& p) { return p.place == token.scope.place; });
    joined.places.push_back({token.scope.place, role, token.name, token.vector, token.store, token.models});
    TP_RETURN_IF_ERROR(disk.WriteFile(File(dir), JsonOf<nlohmann::ordered_json>(joined).dump(2) + "\n"));
  }
  return disk.RemoveFile(file);  // it is of no use to anybody any more
}

bool HasJoined(const std::string& dir) { return RealFileSystem().Exists(File(dir)); }

StatusOr<std::optional<JoinedHost>> ReadJoinedHost(const std::string& dir) {
  RealFileSystem disk;
  if (!HasJoined(dir)) return std::optional<JoinedHost>();
  TP_ASSIGN_OR_RETURN(const std::string text, disk.ReadFile(File(dir), 1 << 24));
  JoinedHost joined;
  if (!FromJson(nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false), joined) ||
      joined.places.empty() || joined.run_id.empty() || joined.address.empty())
    return DataLoss(File(dir) +
                    ": does not say for which places this host has joined; remove the folder, and "
                    "join again with another join token (`tidepool join-token RUN`)");
  return std::optional(std::move(joined));
}

std::vector<std::string> WorkerCommand(const JoinedHost& joined, const JoinedPlace& place,
                                       const std::string& self_path, const std::string& worker_path,
                                       const std::string& identity_dir) {
  std::vector<std::string> argv;
  if (place.role == Name(CallerRole::kDevice)) {
    argv = {worker_path, "run"};
  } else if (place.models) {
    argv = {worker_path, place.role};
  } else {
    argv = {self_path, place.role + "-worker"};
    if (place.vector) argv.emplace_back("--vector");
  }
  for (const std::string& word :
       {"--connect=" + joined.address, "--run-id=" + joined.run_id, "--place=" + std::to_string(place.place),
        "--token-file=" + identity_dir + "/" + place.role + ".token"})
    argv.push_back(word);
  // What computes is the run's to say: a worker on the CPU takes no notice.
  if (place.role == Name(CallerRole::kDevice))
    argv.push_back("--gpu=" + std::to_string(std::ranges::count_if(joined.places, [&](const JoinedPlace& p) {
                     return p.role == place.role && p.place < place.place;
                   })));
  return argv;
}

}  // namespace tidepool::workers
