#pragma once
// Who is who where the wire leaves the machine: certificates of an authority that is the job's own.
//
// Beside the token of each role in RUN/security lie its certificate and key (<role>.crt, <role>.key), and
// authority.crt. A certificate names the role, "device.tidepool", and no host: a job's processes may run
// anywhere. The authority's key is forgotten once the certificates are made, so nobody can make another one
// for the job. Hosts that do not see the folder get theirs of another authority (Certify, newcomers.h), whose
// key is in the controller's memory alone.
//
// Certificates end, and a run may last longer: they are exchanged while the old ones still hold
// (CertificateRenewal). Files change in place, each at once. Who dials reads them anew for each connection,
// who listens looks at them again and again (tls.h, http_server.h), and a connection that stands stays.
//
// TLS is used where these files lie beside the token, else not at all. Thread-safe.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/base/thread_annotations.h"

namespace tidepool::workers {

inline constexpr char kControllerRole[] = "controller";

// What a process shows and whom it believes, PEM. authority: of one authority or, while certificates are
// exchanged, two.
struct Identity {
  std::string authority, certificate, key;
  std::string folder = {}, role = {};  // whose files these are and stay; empty: of none
};
// The same as its files are by now; as it was where they cannot be read or do not fit each other.
Identity Newest(const Identity& identity);
// Whether its certificate is for a place, as that of a newcomer (newcomers.h). Its files are its own: nobody
// else exchanges them.
bool IsNewcomers(const Identity& identity);
// Key and certificate of `next` take the place of the files that `newcomer` has: both, or, if that process
// dies, both when they are read the next time.
Status ReplaceLeaf(const Identity& newcomer, const Identity& next);
// kFailedPrecondition: its certificate does not hold by this host's clock, and what to do. requires that
// it is of files
Status CheckHolds(const Identity& identity);
// How often who listens looks at the files, in seconds: often enough for certificates that hold so long.
int64_t LooksEvery(const Identity& identity);

// Seconds.
struct CertificateTimes {
  int64_t lifetime = 365 * 24 * 3600;
  // Left of it when new ones are made: a run that nobody resumes for so long still has certificates that
  // hold.
  // Of those that hold for minutes enough for both steps and for all to look.
  [[nodiscard]] int64_t renewed_before() const {
    return std::max(lifetime / 12, std::min(lifetime / 2, announced() + 10));
  }
  // Between two steps of an exchange: all have looked at the files by then.
  [[nodiscard]] int64_t announced() const { return std::clamp<int64_t>(lifetime / 24, 2, 60); }
};

// A second name in the certificates of all who serve pages (watch_pages.h), so that one scraper's setting
// fits all of them. An operator's has it not: it cannot pass for a process of the run.
inline constexpr char kPagesName[] = "pages.tidepool";

// Whether a role's certificate has that name.
bool ServesPages(const std::string& role);

// The DNS name in the certificate of a role.
std::string CertifiedName(const std::string& role);
// And of a place, in the certificate of a newcomer: it may attach there and nowhere else.
std::string CertifiedPlace(int64_t place);
// Nullopt: it is no such name.
std::optional<int64_t> PlaceOf(std::string_view dns_name);

// authority.crt, and of each role its .crt and .key: name of the file, PEM.
using CertificateFiles = std::map<std::string, std::string>;

// Those of all roles, of a new authority, whose key nobody has when this returns.
StatusOr<CertificateFiles> MakeCertificates(const std::string& organisation,
                                            const CertificateTimes& times = {});
// The controller's, with those of all roles in `dir`: as they are if they belong together and hold for long
// enough to be exchanged in the run, else made anew. An exchange that was cut off between two files is ended
// first.
StatusOr<Identity> OpenOrCreateCertificates(const std::string& dir, const std::string& run_id,
                                            const CertificateTimes& times = {});
// Those that somebody else has made and put into the folder `given`, whoever may read it; `dir` has copies
// from now on. Where `dir` has others that hold, of another authority, those stay and are exchanged in the
// run: its workers may live. kInvalidArgument: which one cannot be used.
StatusOr<Identity> TakeCertificates(const std::string& given, const std::string& dir);
// Calls are not encrypted from now on.
void RemoveCertificates(const std::string& dir);

// Exchanges the certificates of a folder while they are in use: the next authority is believed beside the
// present one; once all know it, each role gets its new certificate. Who never heard of the first step,
// because its files are a copy, is refused from the second one on.
//
// Certificates of the run's own are exchanged when their end is near. Those of somebody else (`given`) never
// are; they are copied again whenever their files have changed, at once where their authority is the present
// one, and where it is another one the present one is believed no more in the end: it may still have its key.
class CertificateRenewal {
 public:
  // given: as in TakeCertificates, which was called; empty: the run makes its own.
  CertificateRenewal(std::string dir, std::string run_id, const CertificateTimes& times,
                     std::string given = "");
  ~CertificateRenewal();
  // What is to be done by now. Returns what was done, for the log; empty: nothing. A file may be missing or
  // unwritable, and those that are given may be wrong or near their end (kFailedPrecondition); then it is
  // tried again at the next call.
  StatusOr<std::string> Advance(std::chrono::system_clock::time_point now);

  // What a newcomer gets: its certificate for these names, and whom it is to believe.
  struct Certified {
    std::string authority, certificate;
    std::chrono::seconds believed_in{0};  // all who listen have looked at authority.crt by then
  };
  // Whom to believe by now; no certificate.
  StatusOr<Certified> Believed();
  // Over a signing request. The first one makes the authority of newcomers, and so does one after half of its
  // life. kInvalidArgument: the request; kFailedPrecondition: the certificates are somebody else's.
  StatusOr<Certified> Certify(const std::string& request, const std::vector<std::string>& dns_names,
                              std::chrono::system_clock::time_point now);
  // The same for who has one already, and asks over its connection. kResourceExhausted: the last one for
  // these names is younger than a twelfth of its life, and a worker needs one in two thirds of it: whoever
  // has stolen a newcomer's key gets few of them.
  StatusOr<Certified> CertifyAgain(const std::string& request, const std::vector<std::string>& dns_names,
                                   std::chrono::system_clock::time_point now);

 private:
  enum class Step { kNone, kAnnounced, kShown };
  StatusOr<std::string> Begin(int64_t now) TP_REQUIRES(mu_);  // from kNone
  StatusOr<std::string> BeginGiven(int64_t now) TP_REQUIRES(mu_);
  StatusOr<std::string> Announce(CertificateFiles next, int64_t now) TP_REQUIRES(mu_);
  StatusOr<std::string> Show(int64_t now) TP_REQUIRES(mu_);
  struct Authority;

  const std::string dir_, run_id_, given_;
  Mutex mu_;  // of the files, too
  CertificateTimes times_ TP_GUARDED_BY(mu_);
  std::map<std::vector<std::string>, int64_t> again_ TP_GUARDED_BY(mu_);  // when, by the names
  Step step_ TP_GUARDED_BY(mu_) = Step::kNone;
  int64_t since_ TP_GUARDED_BY(mu_) = 0;      // of this step, seconds
  CertificateFiles next_ TP_GUARDED_BY(mu_);  // but in kNone
  // Of given_: at the last look; the last that were used.
  CertificateFiles seen_ TP_GUARDED_BY(mu_), taken_ TP_GUARDED_BY(mu_);
  std::unique_ptr<Authority> newcomers_ TP_GUARDED_BY(mu_);  // null: none has come
};

// Of the role whose token this file has; nullopt: no certificates lie beside it. kInvalidArgument: some file
// is missing, or they are of two jobs; kPermissionDenied: others can read the key; kFailedPrecondition: the
// certificate does not hold yet or any more by this host's clock.
StatusOr<std::optional<Identity>> ReadIdentity(const std::string& token_file);

// What a process shows on every call.
struct Credentials {
  std::string token;
  std::optional<Identity> identity = std::nullopt;
};
// The token of a file, and the certificate beside it.
StatusOr<Credentials> ReadCredentials(const std::string& token_file);

}  // namespace tidepool::workers
