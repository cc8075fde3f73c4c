#include "workers/net/newcomers.h"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/base/hash.h"
#include "core/base/utc_time.h"
#include "workers/net/x509.h"

namespace tidepool::workers {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::string Folder(const std::string& security) { return security + "/newcomers"; }
std::string Record(const std::string& security, const std::string& id) {
  return Folder(security) + "/" + id + ".json";
}

int64_t UnixSeconds(std::chrono::system_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::seconds>(time.time_since_epoch()).count();
}

// An id becomes a part of a path.
bool IsId(const std::string& id) {
  return id.size() == 16 &&
         std::ranges::all_of(id, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

Json ToJson(const JoinScope& scope) {
  return {{"role", Name(scope.role)},
          {"place", scope.place},
          {"ctl_epoch", scope.ctl_epoch},
          {"expires", scope.expires}};
}

Json ReadObject(const std::string& path) {
  std::ifstream in(path);
  Json json = in ? Json::parse(in, nullptr, /*allow_exceptions=*/false) : Json();
  return json.is_object() ? json : Json::object();
}

// What is missing or of another kind is empty.
std::string Text(const Json& json, const char* name) {
  const auto at = json.find(name);
  return at != json.end() && at->is_string() ? at->get<std::string>() : "";
}
std::optional<int64_t> Number(const Json& json, const char* name) {
  const auto at = json.find(name);
  if (at == json.end() || !at->is_number_integer()) return std::nullopt;
  return at->get<int64_t>();
}
std::optional<JoinScope> ScopeIn(const Json& json) {
  const auto place = Number(json, "place"), epoch = Number(json, "ctl_epoch"), end = Number(json, "expires");
  const std::string role = Text(json, "role");
  if (!place || !epoch || !end) return std::nullopt;
  for (const CallerRole each : {CallerRole::kDevice, CallerRole::kReward, CallerRole::kEnvironment}) {
    if (role == Name(each)) return JoinScope{each, *place, *epoch, *end};
  }
  return std::nullopt;
}

}  // namespace

StatusOr<JoinToken> MakeJoinToken(const std::string& security, JoinToken begun) {
  TP_ASSIGN_OR_RETURN(const JobTokens random, JobTokens::Random());
  begun.secret = random.Token(CallerRole::kDevice);
  begun.id = random.Token(CallerRole::kReward).substr(0, 16);
  std::error_code error;
  fs::create_directories(Folder(security), error);
  if (!error) fs::permissions(Folder(security), fs::perms::owner_all, error);
  if (error) return Unavailable(Folder(security) + ": cannot be made (" + error.message() + ")");
  Json record = ToJson(begun.scope);
  record["digest"] = Sha256Hex(begun.secret);
  TP_RETURN_IF_ERROR(WriteSecretFile(Record(security, begun.id), record.dump() + "\n"));
  return begun;
}

Status WriteJoinTokens(const std::string& file, const std::vector<JoinToken>& tokens) {
  std::error_code error;  // what cannot be looked at cannot be written either
  if (fs::exists(file, error)) return AlreadyExists(file + ": is there; name another file");
  Json all = Json::array();
  for (const JoinToken& token : tokens) {
    Json json = ToJson(token.scope);
    json.update({{"join", token.join},
                 {"controller", token.controller},
                 {"run_id", token.run_id},
                 {"authority", token.authority},
                 {"id", token.id},
                 {"secret", token.secret},
                 {"name", token.name},
                 {"shared_memory", token.shared_memory},
                 {"vector", token.vector},
                 {"store", token.store},
                 {"models", token.models}});
    all.push_back(std::move(json));
  }
  return WriteSecretFile(file, all.dump(2) + "\n");
}

StatusOr<std::vector<JoinToken>> ReadJoinTokens(const std::string& file) {
  TP_RETURN_IF_ERROR(CheckPrivate(file));
  std::ifstream in(file);
  const Json all = Json::parse(in, nullptr, /*allow_exceptions=*/false);
  std::vector<JoinToken> tokens;
  for (const Json& json : all.is_array() ? all : Json::array()) {
    const auto scope = json.is_object() ? ScopeIn(json) : std::nullopt;
    if (!scope) break;
    JoinToken token{Text(json, "join"),
                    Text(json, "controller"),
                    Text(json, "run_id"),
                    Text(json, "authority"),
                    Text(json, "id"),
                    Text(json, "secret"),
                    *scope,
                    Text(json, "name"),
                    Text(json, "shared_memory"),
                    json.value("vector", Json()) == Json(true),
                    json.value("store", Json()) == Json(true),
                    json.value("models", Json()) == Json(true)};
    if (token.join.empty() || token.controller.empty() || token.run_id.empty() || token.authority.empty() ||
        !IsId(token.id) || token.secret.size() != 64)
      break;
    tokens.push_back(std::move(token));
  }
  if (tokens.empty() || tokens.size() != all.size())
    return InvalidArgument(file + ": is no join token; `tidepool join-token RUN` makes one");
  for (const JoinToken& token : tokens) {
    if (const int64_t now = time(nullptr); now > token.scope.expires)
      return FailedPrecondition(file + ": the join token has expired at " +
                                UtcTimeText(token.scope.expires * 1000) + ", and this host's clock says " +
                                UtcTimeText(now * 1000) +
                                "; make another one with `tidepool join-token RUN`");
  }
  return tokens;
}

std::vector<std::string> NewcomerNames(CallerRole role, int64_t place) {
  return {CertifiedName(Name(role)), CertifiedPlace(place), kPagesName};
}

StatusOr<Admitted> Admit(const std::string& security, const JobTokens& tokens, int64_t ctl_epoch,
                         CertificateRenewal& certificates, const std::string& id, const std::string& secret,
                         const std::string& signing_request, std::chrono::system_clock::time_point now) {
  const auto refused = [] {
    return PermissionDenied(
        "no join token of this run: it was used, has expired, or is one of an earlier controller; make "
        "another one with `tidepool join-token RUN`");
  };
  if (!IsId(id)) return refused();
  const std::string path = Record(security, id);
  const Json record = ReadObject(path);
  const auto scope = ScopeIn(record);
  // First: whoever does not know the secret cannot use the token up.
  if (!scope || !ConstantTimeEqual(Sha256Hex(secret), Text(record, "digest"))) return refused();
  if (scope->ctl_epoch != ctl_epoch || UnixSeconds(now) > scope->expires) return refused();
  TP_ASSIGN_OR_RETURN(CertificateRenewal::Certified certified,
                      certificates.Certify(signing_request, NewcomerNames(scope->role, scope->place), now));
  std::error_code error;
  fs::rename(path, Folder(security) + "/" + id + ".used", error);
  if (error) return refused();  // somebody else was first, and nobody gets what was just made
  return Admitted{*scope, tokens.Token(scope->role), std::move(certified)};
}

std::unique_ptr<NewcomerRenewal> NewcomerRenewal::Of(const Identity& identity, Asks asks) {
  if (identity.folder.empty() || !IsNewcomers(identity)) return nullptr;
  return std::unique_ptr<NewcomerRenewal>(new NewcomerRenewal(identity, std::move(asks)));
}

StatusOr<std::string> NewcomerRenewal::Advance(std::chrono::system_clock::time_point now) {
  const auto end_of = [](const Identity& identity) {
    return x509::EndOf(x509::ParseCertificate(identity.certificate).get());
  };
  if (next_) {
    if (now < next_->shown) return std::string();
    TP_RETURN_IF_ERROR(ReplaceLeaf(identity_, next_->identity));
    const Next shown = *std::exchange(next_, std::nullopt);
    return "this worker has a new certificate, which holds until " +
           UtcTimeText(end_of(shown.identity) * 1000);
  }
  const Identity present = Newest(identity_);
  const int64_t end = end_of(present);
  const int64_t begin = x509::BeginOf(x509::ParseCertificate(present.certificate).get()) + x509::kBefore_s;
  const int64_t left = end - UnixSeconds(now);
  const bool due = left < (end - begin) / 3;
  const Status asked = Ask(present, due, now);
  if (asked.ok() || !due) return std::string();  // whom to believe is asked again soon
  return Status(asked.code(),
                std::string("the certificate ") + (left < 0 ? "has ended at " : "ends at ") +
                    UtcTimeText(end * 1000) + ", and there is no new one: " + asked.message() +
                    "; it is tried again. A worker that starts, or loses its connection, after that time " +
                    "needs another join token (`tidepool join-token RUN`)");
}

Status NewcomerRenewal::Ask(const Identity& present, bool due, std::chrono::system_clock::time_point now) {
  const auto request = due ? x509::MakeRequest() : std::optional(x509::Request{});
  if (!request) return Internal("a key could not be made: " + x509::WhatFailed());
  TP_ASSIGN_OR_RETURN(const CertificateRenewal::Certified certified, asks_(request->pem));
  if (x509::ParseCertificates(certified.authority).empty())
    return Internal("the controller named no authority to believe");
  if (certified.authority != present.authority)
    TP_RETURN_IF_ERROR(WriteSecretFile(identity_.folder + "/authority.crt", certified.authority));
  if (!due) return OkStatus();
  Identity renewed{certified.authority, certified.certificate, x509::Pem(request->key.get()),
                   identity_.folder, identity_.role};
  TP_RETURN_IF_ERROR(CheckHolds(renewed));
  next_ = Next{std::move(renewed), now + certified.believed_in};
  return OkStatus();
}

}  // namespace tidepool::workers
