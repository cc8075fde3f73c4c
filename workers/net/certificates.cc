#include "workers/net/certificates.h"

#include <algorithm>
#include <charconv>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "core/base/real_file_system.h"
#include "core/base/utc_time.h"
#include "workers/net/auth.h"
#include "workers/net/x509.h"

namespace tidepool::workers {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> Roles() {
  std::vector<std::string> roles = {kControllerRole};
  for (const CallerRole role : AllOf<CallerRole>()) roles.emplace_back(Name(role));
  return roles;
}

constexpr char kAuthorityFile[] = "authority.crt";
std::string AuthorityFile(const std::string& dir) { return dir + "/" + kAuthorityFile; }

std::string ReadAll(const std::string& path) {
  std::error_code error;  // reading a folder throws
  if (!std::filesystem::is_regular_file(path, error)) return {};
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

StatusOr<std::string> ReadPem(const std::string& path) {
  std::string text = ReadAll(path);
  if (text.empty())
    return InvalidArgument(path + ": it is missing or empty, though " +
                           AuthorityFile(fs::path(path).parent_path().string()) +
                           " is there; copy the whole folder RUN/security, or remove authority.crt where the "
                           "run is not encrypted");
  return text;
}

StatusOr<std::optional<Identity>> ReadOf(const std::string& dir, const std::string& role) {
  std::error_code error;  // what cannot be looked at is not there for us
  if (!fs::exists(AuthorityFile(dir), error)) return std::optional<Identity>();
  Identity identity;
  identity.folder = dir;
  identity.role = role;
  TP_ASSIGN_OR_RETURN(identity.authority, ReadPem(AuthorityFile(dir)));
  TP_ASSIGN_OR_RETURN(identity.certificate, ReadPem(dir + "/" + role + ".crt"));
  const std::string key = dir + "/" + role + ".key";
  TP_RETURN_IF_ERROR(CheckPrivate(key));
  TP_ASSIGN_OR_RETURN(identity.key, ReadPem(key));
  return std::optional(std::move(identity));
}

// Of what was read as files.
Identity IdentityIn(const CertificateFiles& files, const std::string& role) {
  return {files.at(kAuthorityFile), files.at(role + ".crt"), files.at(role + ".key")};
}
// All but authority.crt.
std::vector<std::string> LeafFiles(const std::vector<std::string>& roles = Roles()) {
  std::vector<std::string> files;
  for (const std::string& role : roles) {
    for (const char* end : {".key", ".crt"}) files.push_back(role + end);
  }
  return files;
}
// An empty text: it cannot be read.
CertificateFiles ReadFiles(const std::string& dir, const std::vector<std::string>& roles = Roles()) {
  CertificateFiles files = {{kAuthorityFile, ReadAll(AuthorityFile(dir))}};
  for (const std::string& file : LeafFiles(roles)) files[file] = ReadAll(dir + "/" + file);
  return files;
}

bool KeyFits(const Identity& identity) {
  const auto certificate = x509::ParseCertificate(identity.certificate);
  const auto key = x509::ParseKey(identity.key);
  return certificate && key && x509::AreOfEachOther(certificate.get(), key.get());
}

// Whether all three can be read, belong together and hold until then.
bool Holds(const Identity& identity, int64_t until) {
  const auto certificate = x509::ParseCertificate(identity.certificate);
  const auto authorities = x509::ParseCertificates(identity.authority);
  const X509* issuer = certificate ? x509::IssuerOf(certificate.get(), authorities) : nullptr;
  return issuer != nullptr && x509::EndOf(issuer) > until && x509::EndOf(certificate.get()) > until &&
         KeyFits(identity);
}

bool AllHold(const std::string& dir, int64_t until) {
  for (const std::string& role : Roles()) {
    const auto known = ReadOf(dir, role);
    if (!known.ok() || !known->has_value() || !Holds(**known, until)) return false;
  }
  return true;
}

// Whether somebody who looks at the clock of this host may show it.
Status CheckHolds(const std::string& path, const Identity& identity, int64_t now) {
  const auto mine = x509::ParseCertificate(identity.certificate);
  const auto authorities = x509::ParseCertificates(identity.authority);
  if (!mine || authorities.empty())
    return InvalidArgument(path +
                           ": it, or the authority.crt beside it, is no certificate; copy the whole folder "
                           "RUN/security");
  if (x509::IssuerOf(mine.get(), authorities) == nullptr)
    return InvalidArgument(path + ": is a certificate of run '" + x509::OrganisationOf(mine.get()) +
                           "', and the authority.crt beside it, of run '" +
                           x509::OrganisationOf(authorities.front().get()) +
                           "', has not made it; take the whole folder RUN/security of one run");
  const auto clock = [&] { return "this host's clock says " + UtcTimeText(now * 1000); };
  const std::string renewed =
      IsNewcomers(identity)
          ? "it is renewed while its worker reaches the controller, and this one was not: make another join "
            "token (`tidepool join-token RUN`) and join again, into another folder"
          : "the controller renews those of RUN/security while it runs: copy them again where this is a copy";
  if (now > x509::EndOf(mine.get()))
    return FailedPrecondition(path + ": the certificate has expired at " +
                              UtcTimeText(x509::EndOf(mine.get()) * 1000) + ", and " + clock() + "; " +
                              renewed + ", or set the clock");
  if (now < x509::BeginOf(mine.get()))
    return FailedPrecondition(path + ": the certificate holds from " +
                              UtcTimeText(x509::BeginOf(mine.get()) * 1000) + " on, and " + clock() +
                              "; set the clock of this host");
  return OkStatus();
}

Status CheckGiven(const std::string& given, const CertificateFiles& files) {
  for (const std::string& role : Roles()) {
    const Identity identity = IdentityIn(files, role);
    const auto certificate = x509::ParseCertificate(identity.certificate);
    const bool pages = ServesPages(role);
    if (!Holds(identity, time(nullptr)) || !x509::IsFor(certificate.get(), CertifiedName(role)) ||
        x509::IsFor(certificate.get(), kPagesName) != pages)
      return InvalidArgument(
          "--certificates: " + given + ": " + kAuthorityFile + ", " + role + ".crt and " + role +
          ".key have to be there, to belong together, not to have run out, and to be for the DNS name " +
          CertifiedName(role) + (pages ? " and " : " and not for ") + kPagesName +
          "; without --certificates the run makes its own");
  }
  return OkStatus();
}

// All but authority.crt. A reader that comes between a key and its certificate sees a pair that does not fit;
// it looks again.
Status WriteLeaves(const std::string& dir, const CertificateFiles& files) {
  for (const auto& [file, text] : files) {
    if (file != kAuthorityFile) TP_RETURN_IF_ERROR(WriteSecretFile(dir + "/" + file, text));
  }
  return OkStatus();
}

constexpr char kExchange[] = "exchange";  // folder with the files of one that has begun

// Another process of the folder, which starts just now, may remove it at the same time.
Status Removed(const std::string& tree) {
  const Status removed = RealFileSystem().RemoveTree(tree);
  return removed.code() == StatusCode::kNotFound ? OkStatus() : removed;
}

// Writes on what an exchange that was cut off, by the death of its process, had to write.
Status FinishExchange(const std::string& dir, const std::vector<std::string>& roles = Roles()) {
  const std::string begun = dir + "/" + kExchange;
  std::error_code error;  // what cannot be looked at is not there for us
  if (!fs::exists(begun, error)) return OkStatus();
  RealFileSystem disk;
  const CertificateFiles files = ReadFiles(begun, roles);
  if (std::ranges::all_of(files, [](const auto& file) { return !file.second.empty(); }))
    TP_RETURN_IF_ERROR(WriteLeaves(dir, files));  // else another process has just ended it
  TP_RETURN_IF_ERROR(Removed(begun + ".tmp"));
  const Status ended = disk.Rename(begun, begun + ".tmp");  // never half of it under that name
  if (ended.code() == StatusCode::kNotFound) return OkStatus();
  TP_RETURN_IF_ERROR(ended);
  return Removed(begun + ".tmp");
}

// All are on the disk, in a folder of their own, before the first one is replaced.
Status ExchangeLeaves(const std::string& dir, const CertificateFiles& files,
                      const std::vector<std::string>& roles = Roles()) {
  const std::string begun = dir + "/" + kExchange, next = begun + ".tmp";
  RealFileSystem disk;
  TP_RETURN_IF_ERROR(FinishExchange(dir, roles));  // of one that could not be ended, as on a full disk
  TP_RETURN_IF_ERROR(Removed(next));
  TP_RETURN_IF_ERROR(disk.MakeDirectory(next));
  TP_RETURN_IF_ERROR(WriteLeaves(next, files));
  TP_RETURN_IF_ERROR(WriteSecretFile(AuthorityFile(next), files.at(kAuthorityFile)));
  TP_RETURN_IF_ERROR(disk.Rename(next, begun));
  TP_RETURN_IF_ERROR(disk.SyncDir(dir));
  return FinishExchange(dir, roles);
}

// With those of an exchange that was cut off. Another controller may be ending it at this moment: then the
// first look may see files of both.
StatusOr<bool> HoldOrWillHold(const std::string& dir, int64_t until) {
  for (int look = 0; look < 2; ++look) {
    TP_RETURN_IF_ERROR(FinishExchange(dir));
    if (AllHold(dir, until)) return true;
  }
  return false;
}

Status WriteAll(const std::string& dir, const CertificateFiles& files) {
  RemoveCertificates(dir);
  TP_RETURN_IF_ERROR(WriteLeaves(dir, files));
  return WriteSecretFile(AuthorityFile(dir), files.at(kAuthorityFile));  // last: who finds it finds all
}

StatusOr<Identity> ControllersOf(const std::string& dir) {
  TP_ASSIGN_OR_RETURN(std::optional<Identity> mine, ReadOf(dir, kControllerRole));
  if (!mine) return NotFound(AuthorityFile(dir) + ": is gone while the run needs it");
  return *std::move(mine);
}

CertificateTimes TimesOf(const Identity& identity) {
  const auto mine = x509::ParseCertificate(identity.certificate);
  return {mine ? x509::EndOf(mine.get()) - x509::BeginOf(mine.get()) - x509::kBefore_s : 0};
}

}  // namespace

namespace {

int64_t SecondsOf(std::chrono::system_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::seconds>(time.time_since_epoch()).count();
}

constexpr char kNewcomers[] = "newcomers";  // name of their authorities

// Of the authorities in `text` those of newcomers that hold, of this and of earlier lives of the controller.
std::string NewcomersAuthorities(const std::string& text, int64_t now) {
  std::string all;
  for (const auto& authority : x509::ParseCertificates(text)) {
    if (x509::IsNamed(authority.get(), kNewcomers) && x509::EndOf(authority.get()) > now)
      all += x509::Pem(authority.get());
  }
  return all;
}

}  // namespace

struct CertificateRenewal::Authority {
  x509::Issued issued;
  int64_t believed_at = 0;  // seconds
};

CertificateRenewal::CertificateRenewal(std::string dir, std::string run_id, const CertificateTimes& times,
                                       std::string given)
    : dir_(std::move(dir)), run_id_(std::move(run_id)), given_(std::move(given)), times_(times) {}
CertificateRenewal::~CertificateRenewal() = default;

bool ServesPages(const std::string& role) { return role != Name(CallerRole::kOperator); }

std::string CertifiedName(const std::string& role) { return role + ".tidepool"; }

std::string CertifiedPlace(int64_t place) { return "place-" + std::to_string(place) + ".tidepool"; }

std::optional<int64_t> PlaceOf(std::string_view dns_name) {
  constexpr std::string_view kBegin = "place-";
  int64_t place = 0;
  if (!dns_name.starts_with(kBegin)) return std::nullopt;
  const auto [end, error] =
      std::from_chars(dns_name.data() + kBegin.size(), dns_name.data() + dns_name.size(), place);
  if (error != std::errc() || CertifiedPlace(place) != dns_name) return std::nullopt;
  return place;
}

Identity Newest(const Identity& identity) {
  if (identity.folder.empty()) return identity;
  auto now = ReadOf(identity.folder, identity.role);
  return now.ok() && now->has_value() && KeyFits(**now) ? **std::move(now) : identity;
}

bool IsNewcomers(const Identity& identity) {
  const auto mine = x509::ParseCertificate(identity.certificate);
  return mine && std::ranges::any_of(x509::DnsNamesOf(mine.get()),
                                     [](const std::string& name) { return PlaceOf(name).has_value(); });
}

Status ReplaceLeaf(const Identity& newcomer, const Identity& next) {
  return ExchangeLeaves(newcomer.folder,
                        {{kAuthorityFile, next.authority},
                         {newcomer.role + ".key", next.key},
                         {newcomer.role + ".crt", next.certificate}},
                        {newcomer.role});
}

Status CheckHolds(const Identity& identity) {
  return CheckHolds(identity.folder + "/" + identity.role + ".crt", identity, time(nullptr));
}

int64_t LooksEvery(const Identity& identity) {
  return std::clamp<int64_t>(TimesOf(identity).announced() / 6, 1, 10);
}

StatusOr<CertificateFiles> MakeCertificates(const std::string& organisation, const CertificateTimes& times) {
  const auto failed = [] {
    return Internal("certificates of the job could not be made: " + x509::WhatFailed());
  };
  const auto authority = x509::IssueAuthority(organisation, times.lifetime);
  if (!authority) return failed();
  CertificateFiles made = {{kAuthorityFile, x509::Pem(authority->certificate.get())}};
  for (const std::string& role : Roles()) {
    std::vector<std::string> names = {CertifiedName(role)};
    if (ServesPages(role)) names.emplace_back(kPagesName);
    const auto issued = x509::Issue(*authority, organisation, times.lifetime, names);
    if (!issued) return failed();
    made[role + ".key"] = x509::Pem(issued->key.get());
    made[role + ".crt"] = x509::Pem(issued->certificate.get());
  }
  return made;
}

StatusOr<Identity> OpenOrCreateCertificates(const std::string& dir, const std::string& run_id,
                                            const CertificateTimes& times) {
  TP_ASSIGN_OR_RETURN(const bool hold, HoldOrWillHold(dir, time(nullptr) + 3 * times.announced()));
  if (!hold) {
    TP_ASSIGN_OR_RETURN(const CertificateFiles made, MakeCertificates(run_id, times));
    TP_RETURN_IF_ERROR(WriteAll(dir, made));
  }
  return ControllersOf(dir);
}

StatusOr<Identity> TakeCertificates(const std::string& given, const std::string& dir) {
  const CertificateFiles files = ReadFiles(given);
  TP_RETURN_IF_ERROR(CheckGiven(given, files));
  TP_RETURN_IF_ERROR(FinishExchange(dir));
  const CertificateTimes times = TimesOf(IdentityIn(ReadFiles(dir), kControllerRole));
  TP_ASSIGN_OR_RETURN(const bool hold, HoldOrWillHold(dir, time(nullptr) + 3 * times.announced()));
  if (!hold) {
    TP_RETURN_IF_ERROR(WriteAll(dir, files));
  } else if (ReadAll(AuthorityFile(dir)) == files.at(kAuthorityFile)) {
    TP_RETURN_IF_ERROR(ExchangeLeaves(dir, files));
  }
  return ControllersOf(dir);
}

StatusOr<std::string> CertificateRenewal::Advance(std::chrono::system_clock::time_point now) {
  const int64_t seconds = SecondsOf(now);
  const MutexLock lock(mu_);
  if (step_ == Step::kNone) return given_.empty() ? Begin(seconds) : BeginGiven(seconds);
  if (seconds - since_ < times_.announced()) return std::string();
  if (step_ == Step::kAnnounced) return Show(seconds);
  TP_RETURN_IF_ERROR(WriteSecretFile(AuthorityFile(dir_), next_.at(kAuthorityFile)));
  step_ = Step::kNone;
  return std::string("the authority before is believed no more");
}

StatusOr<std::string> CertificateRenewal::Begin(int64_t now) {
  if (AllHold(dir_, now + times_.renewed_before())) return std::string();
  TP_ASSIGN_OR_RETURN(CertificateFiles next, MakeCertificates(run_id_, times_));
  return Announce(std::move(next), now);
}

StatusOr<std::string> CertificateRenewal::BeginGiven(int64_t now) {
  CertificateFiles files = ReadFiles(given_);
  if (files != taken_) {
    if (files != seen_) {  // it is read again before it is believed: its writer may be half-way
      seen_ = std::move(files);
      return std::string();
    }
    TP_RETURN_IF_ERROR(CheckGiven(given_, files));
    const CertificateFiles present = ReadFiles(dir_);
    TP_ASSIGN_OR_RETURN(const Identity mine, ControllersOf(dir_));
    times_ = TimesOf(mine);
    if (present != files) {
      TP_ASSIGN_OR_RETURN(std::string done, Announce(files, now));
      taken_ = std::move(files);
      return done;
    }
    taken_ = std::move(files);
  }
  const Identity mine = IdentityIn(taken_, kControllerRole);
  const int64_t end = x509::EndOf(x509::ParseCertificate(mine.certificate).get());
  if (end - now < TimesOf(mine).renewed_before())
    return FailedPrecondition("--certificates: " + given_ + ": the certificates end at " +
                              UtcTimeText(end * 1000) + ", and there are no newer ones; put them there");
  return std::string();
}

// Of the present authorities that which made the present certificates stays; those before have no more.
StatusOr<std::string> CertificateRenewal::Announce(CertificateFiles next, int64_t now) {
  TP_ASSIGN_OR_RETURN(const Identity mine, ControllersOf(dir_));
  std::string believed = next.at(kAuthorityFile);
  const auto present = x509::ParseCertificate(mine.certificate);
  if (present && x509::IssuerOf(present.get(), x509::ParseCertificates(believed)) == nullptr) {
    const auto authorities = x509::ParseCertificates(mine.authority);
    if (X509* issuer = x509::IssuerOf(present.get(), authorities)) believed += x509::Pem(issuer);
  }
  believed += NewcomersAuthorities(mine.authority, now);
  const bool known = believed == mine.authority && believed == next.at(kAuthorityFile);
  TP_RETURN_IF_ERROR(WriteSecretFile(AuthorityFile(dir_), believed));
  next_ = std::move(next);
  since_ = now;
  step_ = Step::kAnnounced;
  return known ? Show(now) : std::string("the job's next authority is believed beside the present one");
}

StatusOr<std::string> CertificateRenewal::Show(int64_t now) {
  TP_ASSIGN_OR_RETURN(const Identity before, ControllersOf(dir_));
  TP_RETURN_IF_ERROR(ExchangeLeaves(dir_, next_));
  // Nobody has the key of an authority of our own.
  step_ = !given_.empty() && before.authority != next_.at(kAuthorityFile) ? Step::kShown : Step::kNone;
  since_ = now;
  const auto mine = x509::ParseCertificate(next_.at(std::string(kControllerRole) + ".crt"));
  return "all roles have new certificates, which hold until " + UtcTimeText(x509::EndOf(mine.get()) * 1000);
}

StatusOr<CertificateRenewal::Certified> CertificateRenewal::Believed() {
  const MutexLock lock(mu_);
  TP_ASSIGN_OR_RETURN(Identity mine, ControllersOf(dir_));
  return Certified{std::move(mine.authority), "", std::chrono::seconds(0)};
}

StatusOr<CertificateRenewal::Certified> CertificateRenewal::Certify(
    const std::string& request, const std::vector<std::string>& dns_names,
    std::chrono::system_clock::time_point now) {
  const int64_t seconds = SecondsOf(now);
  if (!given_.empty())
    return FailedPrecondition(
        "the certificates of this run are those of --certificates; whoever made them "
        "makes that of another host, too");
  const x509::Key key = x509::KeyOfRequest(request);
  if (key == nullptr)
    return InvalidArgument("the signing request is none, or its key is no elliptic one of 256 bits or more");
  const MutexLock lock(mu_);
  TP_ASSIGN_OR_RETURN(const Identity mine, ControllersOf(dir_));
  Certified certified{mine.authority, "", std::chrono::seconds(0)};
  const auto left = [&](const X509* authority) { return x509::EndOf(authority) - seconds; };
  if (newcomers_ == nullptr || left(newcomers_->issued.certificate.get()) < times_.lifetime / 2) {
    auto made = x509::IssueAuthority(run_id_, times_.lifetime, kNewcomers);
    if (!made) return Internal("the authority of newcomers could not be made: " + x509::WhatFailed());
    certified.authority += x509::Pem(made->certificate.get());
    TP_RETURN_IF_ERROR(WriteSecretFile(AuthorityFile(dir_), certified.authority));
    newcomers_ = std::make_unique<Authority>(Authority{*std::move(made)});
    newcomers_->believed_at = seconds + 2 * LooksEvery(mine) + 1;  // other newcomers ask, and then look
  }
  certified.believed_in = std::chrono::seconds(std::max<int64_t>(newcomers_->believed_at - seconds, 0));
  const x509::Issued& authority = newcomers_->issued;
  const x509::Certificate issued =
      x509::IssueFor(key.get(), authority, run_id_, left(authority.certificate.get()), dns_names);
  if (issued == nullptr) return Internal("a certificate could not be made: " + x509::WhatFailed());
  certified.certificate = x509::Pem(issued.get());
  return certified;
}

StatusOr<CertificateRenewal::Certified> CertificateRenewal::CertifyAgain(
    const std::string& request, const std::vector<std::string>& dns_names,
    std::chrono::system_clock::time_point now) {
  const int64_t seconds = SecondsOf(now);
  {
    const MutexLock lock(mu_);
    const int64_t pause = times_.lifetime / 12;
    const auto last = again_.find(dns_names);
    if (last != again_.end() && seconds - last->second < pause)
      return ResourceExhausted("a certificate was made for this place " +
                               std::to_string(seconds - last->second) + " s ago, and the next one is made " +
                               std::to_string(pause) + " s after it");
  }
  auto certified = Certify(request, dns_names, now);
  const MutexLock lock(mu_);
  if (certified.ok()) again_[dns_names] = seconds;
  return certified;
}

void RemoveCertificates(const std::string& dir) {
  std::error_code error;  // what is not there need not go
  fs::remove(AuthorityFile(dir), error);
  for (const std::string& file : LeafFiles()) fs::remove(dir + "/" + file, error);
  for (const char* end : {"", ".tmp"}) fs::remove_all(dir + "/" + kExchange + end, error);
}

StatusOr<std::optional<Identity>> ReadIdentity(const std::string& token_file) {
  const fs::path path(token_file);
  const std::string dir = path.parent_path().string();
  const std::string folder = dir.empty() ? "." : dir, role = path.stem().string();
  TP_ASSIGN_OR_RETURN(std::optional<Identity> identity, ReadOf(folder, role));
  if (identity && IsNewcomers(*identity)) {
    RemoveUnfinishedSecrets(folder);
    TP_RETURN_IF_ERROR(FinishExchange(folder, {role}));
    TP_ASSIGN_OR_RETURN(identity, ReadOf(folder, role));
  }
  if (identity) TP_RETURN_IF_ERROR(CheckHolds(folder + "/" + role + ".crt", *identity, time(nullptr)));
  return identity;
}

StatusOr<Credentials> ReadCredentials(const std::string& token_file) {
  TP_ASSIGN_OR_RETURN(std::string token, ReadTokenFile(token_file));
  TP_ASSIGN_OR_RETURN(std::optional<Identity> identity, ReadIdentity(token_file));
  return Credentials{std::move(token), std::move(identity)};
}

}  // namespace tidepool::workers
