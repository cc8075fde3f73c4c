#include "workers/net/certificates.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <vector>

#include "workers/net/auth.h"

namespace tidepool::workers {
namespace {

namespace fs = std::filesystem;

constexpr long kDay = 24L * 3600;
constexpr long kYear = 365 * kDay, kMonth = 30 * kDay;

template <auto Free>
struct Freed {
  template <typename T>
  void operator()(T* p) const {
    Free(p);
  }
};
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using Memory = std::unique_ptr<BIO, Freed<BIO_free>>;

std::string TextOf(BIO* memory) {
  char* data = nullptr;
  const long n = BIO_get_mem_data(memory, &data);
  return {data, static_cast<size_t>(n)};
}
std::string Pem(X509* certificate) {
  const Memory out(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509(out.get(), certificate);
  return TextOf(out.get());
}
std::string Pem(EVP_PKEY* key) {
  const Memory out(BIO_new(BIO_s_mem()));
  PEM_write_bio_PrivateKey(out.get(), key, nullptr, nullptr, 0, nullptr, nullptr);
  return TextOf(out.get());
}

bool Extend(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  const bool added = extension != nullptr && X509_add_ext(certificate, extension, -1) == 1;
  X509_EXTENSION_free(extension);
  return added;
}

struct Issued {
  Certificate certificate;
  Key key;
};

// issuer: null for one that signs itself. Null on failure of the library.
std::optional<Issued> Issue(const std::string& organisation, const std::string& name, const Issued* issuer,
                            bool of_pages = false) {
  Issued made{Certificate(X509_new()), Key(EVP_EC_gen("P-256"))};
  X509* c = made.certificate.get();
  if (c == nullptr || made.key == nullptr) return std::nullopt;
  unsigned char serial[16];
  if (RAND_bytes(serial, sizeof serial) != 1) return std::nullopt;
  serial[0] &= 0x7F;
  BIGNUM* number = BN_bin2bn(serial, sizeof serial, nullptr);
  BN_to_ASN1_INTEGER(number, X509_get_serialNumber(c));
  BN_free(number);
  X509_set_version(c, X509_VERSION_3);
  X509_gmtime_adj(X509_getm_notBefore(c), -kDay);  // clocks of hosts differ
  X509_gmtime_adj(X509_getm_notAfter(c), kYear);
  X509_NAME* subject = X509_get_subject_name(c);
  const auto add = [&](const char* field, const std::string& value) {
    return X509_NAME_add_entry_by_txt(subject, field, MBSTRING_UTF8,
                                      reinterpret_cast<const unsigned char*>(value.c_str()), -1, -1, 0) == 1;
  };
  X509* by = issuer == nullptr ? c : issuer->certificate.get();
  const bool named = add("O", organisation.substr(0, 64)) && add("CN", name);
  X509_set_issuer_name(c, X509_get_subject_name(by));
  X509_set_pubkey(c, made.key.get());
  const std::string names = "DNS:" + name + (of_pages ? std::string(",DNS:") + kPagesName : "");
  const bool extended = issuer == nullptr
                            ? Extend(c, by, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
                                  Extend(c, by, NID_key_usage, "critical,keyCertSign") &&
                                  Extend(c, by, NID_subject_key_identifier, "hash")
                            : Extend(c, by, NID_basic_constraints, "critical,CA:FALSE") &&
                                  Extend(c, by, NID_key_usage, "critical,digitalSignature") &&
                                  Extend(c, by, NID_ext_key_usage, "serverAuth,clientAuth") &&
                                  Extend(c, by, NID_subject_alt_name, names);
  if (!named || !extended ||
      X509_sign(c, issuer == nullptr ? made.key.get() : issuer->key.get(), EVP_sha256()) == 0)
    return std::nullopt;
  return made;
}

std::vector<std::string> Roles() {
  std::vector<std::string> roles = {kControllerRole};
  for (const CallerRole role : AllOf<CallerRole>()) roles.emplace_back(Name(role));
  return roles;
}

constexpr char kAuthorityFile[] = "authority.crt";
std::string AuthorityFile(const std::string& dir) { return dir + "/" + kAuthorityFile; }

std::string ReadAll(const std::string& path) {
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
  TP_ASSIGN_OR_RETURN(identity.authority, ReadPem(AuthorityFile(dir)));
  TP_ASSIGN_OR_RETURN(identity.certificate, ReadPem(dir + "/" + role + ".crt"));
  const std::string key = dir + "/" + role + ".key";
  TP_RETURN_IF_ERROR(CheckPrivate(key));
  TP_ASSIGN_OR_RETURN(identity.key, ReadPem(key));
  return std::optional(std::move(identity));
}

// Read: PEM_read_bio_X509 and the like. Null: the text is none.
template <typename Owned, auto Read>
Owned Parse(const std::string& pem) {
  const Memory in(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  return Owned(Read(in.get(), nullptr, nullptr, nullptr));
}

// Whether all three can be read, belong together and hold for so long.
bool Holds(const Identity& identity, long for_s) {
  const auto authority = Parse<Certificate, PEM_read_bio_X509>(identity.authority);
  const auto certificate = Parse<Certificate, PEM_read_bio_X509>(identity.certificate);
  const auto key = Parse<Key, PEM_read_bio_PrivateKey>(identity.key);
  time_t later = time(nullptr) + for_s;
  const auto lasts = [&](X509* c) { return X509_cmp_time(X509_get0_notAfter(c), &later) > 0; };
  const bool holds = authority && certificate && key && lasts(authority.get()) && lasts(certificate.get()) &&
                     X509_verify(certificate.get(), X509_get0_pubkey(authority.get())) == 1 &&
                     X509_check_private_key(certificate.get(), key.get()) == 1;
  ERR_clear_error();  // what was wrong is mended, and not of the next one who asks
  return holds;
}

Identity IdentityOf(const std::string& role, const std::map<std::string, std::string>& files) {
  return {files.at(kAuthorityFile), files.at(role + ".crt"), files.at(role + ".key")};
}

}  // namespace

bool ServesPages(const std::string& role) { return role != Name(CallerRole::kOperator); }

std::string CertifiedName(const std::string& role) { return role + ".tidepool"; }

StatusOr<std::map<std::string, std::string>> MakeCertificates(const std::string& organisation) {
  const auto failed = [] {
    char text[256] = "";
    ERR_error_string_n(ERR_get_error(), text, sizeof text);
    return Internal(std::string("certificates of the job could not be made: ") + text);
  };
  const std::optional<Issued> authority = Issue(organisation, "authority.tidepool", nullptr);
  if (!authority) return failed();
  std::map<std::string, std::string> made = {{kAuthorityFile, Pem(authority->certificate.get())}};
  for (const std::string& role : Roles()) {
    const std::optional<Issued> issued =
        Issue(organisation, CertifiedName(role), &*authority, ServesPages(role));
    if (!issued) return failed();
    made[role + ".key"] = Pem(issued->key.get());
    made[role + ".crt"] = Pem(issued->certificate.get());
  }
  return made;
}

StatusOr<JobCertificates> FindOrMakeCertificates(const std::string& dir, const std::string& run_id) {
  JobCertificates found;
  bool whole = true;
  for (const std::string& role : Roles()) {
    const auto known = ReadOf(dir, role);
    whole = whole && known.ok() && known->has_value() && Holds(**known, kMonth);
    if (whole && role == kControllerRole) found.controller = **known;
  }
  if (whole) return found;
  TP_ASSIGN_OR_RETURN(found.files, MakeCertificates(run_id));
  found.controller = IdentityOf(kControllerRole, found.files);
  return found;
}

StatusOr<JobCertificates> ReadGivenCertificates(const std::string& given) {
  JobCertificates taken;
  taken.files[kAuthorityFile] = ReadAll(given + "/" + kAuthorityFile);
  for (const std::string& role : Roles()) {
    for (const std::string& file : {role + ".crt", role + ".key"})
      taken.files[file] = ReadAll(given + "/" + file);
    const Identity identity = IdentityOf(role, taken.files);
    const auto certificate = Parse<Certificate, PEM_read_bio_X509>(identity.certificate);
    const auto is_for = [&](const std::string& name) {
      return X509_check_host(certificate.get(), name.c_str(), 0, 0, nullptr) == 1;
    };
    const bool pages = ServesPages(role);
    if (!Holds(identity, 0) || !is_for(CertifiedName(role)) || is_for(kPagesName) != pages)
      return InvalidArgument(
          "--certificates: " + given + ": " + kAuthorityFile + ", " + role + ".crt and " + role +
          ".key have to be there, to belong together, not to have run out, and to be for the DNS name " +
          CertifiedName(role) + (pages ? " and " : " and not for ") + kPagesName +
          "; without --certificates the run makes its own");
  }
  taken.controller = IdentityOf(kControllerRole, taken.files);
  return taken;
}

Status KeepCertificates(const JobCertificates& certificates, const std::string& dir) {
  if (certificates.files.empty()) return OkStatus();
  RemoveCertificates(dir);
  for (const auto& [file, pem] : certificates.files) {
    if (file != kAuthorityFile) TP_RETURN_IF_ERROR(WriteSecretFile(dir + "/" + file, pem));
  }
  // Last: who finds it finds all.
  return WriteSecretFile(AuthorityFile(dir), certificates.files.at(kAuthorityFile));
}

void RemoveCertificates(const std::string& dir) {
  std::error_code error;  // what is not there need not go
  fs::remove(AuthorityFile(dir), error);
  for (const std::string& role : Roles()) {
    fs::remove(dir + "/" + role + ".crt", error);
    fs::remove(dir + "/" + role + ".key", error);
  }
}

StatusOr<std::optional<Identity>> ReadIdentity(const std::string& token_file) {
  const fs::path path(token_file);
  const std::string dir = path.parent_path().string();
  return ReadOf(dir.empty() ? "." : dir, path.stem().string());
}

StatusOr<Credentials> ReadCredentials(const std::string& token_file) {
  TP_ASSIGN_OR_RETURN(std::string token, ReadTokenFile(token_file));
  TP_ASSIGN_OR_RETURN(std::optional<Identity> identity, ReadIdentity(token_file));
  return Credentials{std::move(token), std::move(identity)};
}

}  // namespace tidepool::workers
