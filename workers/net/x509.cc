#include "workers/net/x509.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <cstring>
#include <ctime>

namespace tidepool::workers::x509 {
namespace {

using Memory = std::unique_ptr<BIO, Freed<BIO_free>>;

Memory MemoryOf(const std::string& pem) {
  return Memory(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}
std::string TextOf(BIO* memory) {
  char* data = nullptr;
  const long n = BIO_get_mem_data(memory, &data);
  return {data, static_cast<size_t>(n)};
}

int64_t UnixSeconds(const ASN1_TIME* time) {
  struct tm utc {};
  return ASN1_TIME_to_tm(time, &utc) == 1 ? static_cast<int64_t>(timegm(&utc)) : 0;
}

bool Extend(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  const bool added = extension != nullptr && X509_add_ext(certificate, extension, -1) == 1;
  X509_EXTENSION_free(extension);
  return added;
}

// Without extensions and signature. Null: the library failed.
Certificate Begin(const std::string& organisation, const std::string& name, int64_t lifetime_s, EVP_PKEY* key,
                  X509* issuer) {
  Certificate made(X509_new());
  X509* c = made.get();
  unsigned char serial[16];
  if (c == nullptr || key == nullptr || RAND_bytes(serial, sizeof serial) != 1) return nullptr;
  serial[0] &= 0x7F;
  BIGNUM* number = BN_bin2bn(serial, sizeof serial, nullptr);
  BN_to_ASN1_INTEGER(number, X509_get_serialNumber(c));
  BN_free(number);
  X509_set_version(c, X509_VERSION_3);
  X509_gmtime_adj(X509_getm_notBefore(c), -kBefore_s);
  X509_gmtime_adj(X509_getm_notAfter(c), lifetime_s);
  X509_NAME* subject = X509_get_subject_name(c);
  const auto add = [&](const char* field, const std::string& value) {
    return X509_NAME_add_entry_by_txt(subject, field, MBSTRING_UTF8,
                                      reinterpret_cast<const unsigned char*>(value.c_str()), -1, -1, 0) == 1;
  };
  if (!add("O", organisation.substr(0, 64)) || !add("CN", name)) return nullptr;
  X509_set_issuer_name(c, X509_get_subject_name(issuer == nullptr ? c : issuer));
  X509_set_pubkey(c, key);
  return made;
}

}  // namespace

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

// What is none is no error of the next one who asks, nor is the end of the text.
Certificate ParseCertificate(const std::string& pem) {
  Certificate read(PEM_read_bio_X509(MemoryOf(pem).get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  return read;
}
Key ParseKey(const std::string& pem) {
  Key read(PEM_read_bio_PrivateKey(MemoryOf(pem).get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  return read;
}
std::vector<Certificate> ParseCertificates(const std::string& pem) {
  const Memory in = MemoryOf(pem);
  std::vector<Certificate> all;
  while (X509* c = PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr)) all.emplace_back(c);
  ERR_clear_error();
  return all;
}

X509* IssuerOf(X509* certificate, const std::vector<Certificate>& authorities) {
  for (const Certificate& authority : authorities) {
    if (X509_verify(certificate, X509_get0_pubkey(authority.get())) == 1) return authority.get();
    ERR_clear_error();  // another one may have
  }
  return nullptr;
}

bool AreOfEachOther(X509* certificate, EVP_PKEY* key) {
  const bool fit = X509_check_private_key(certificate, key) == 1;
  ERR_clear_error();  // the answer says it
  return fit;
}

bool IsFor(X509* certificate, const std::string& dns_name) {
  return X509_check_host(certificate, dns_name.c_str(), 0, 0, nullptr) == 1;
}

std::vector<std::string> DnsNamesOf(X509* certificate) {
  const std::unique_ptr<GENERAL_NAMES, Freed<GENERAL_NAMES_free>> names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::vector<std::string> all;
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_DNS) continue;
    all.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(name->d.dNSName)),
                     static_cast<size_t>(ASN1_STRING_length(name->d.dNSName)));
  }
  return all;
}

std::string OrganisationOf(const X509* certificate) {
  char text[128] = "";
  X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_organizationName, text, sizeof text);
  return text;
}

int64_t BeginOf(const X509* certificate) { return UnixSeconds(X509_get0_notBefore(certificate)); }
int64_t EndOf(const X509* certificate) { return UnixSeconds(X509_get0_notAfter(certificate)); }

std::string WhatFailed() {
  char text[256] = "";
  ERR_error_string_n(ERR_get_error(), text, sizeof text);
  return text;
}

std::optional<Issued> IssueAuthority(const std::string& organisation, int64_t lifetime_s,
                                     const std::string& name) {
  // A name of its own: of two that a file has OpenSSL finds the one that made a certificate by its name.
  unsigned char random[8];
  if (RAND_bytes(random, sizeof random) != 1) return std::nullopt;
  uint64_t number = 0;
  std::memcpy(&number, random, sizeof random);
  Issued made{nullptr, Key(EVP_EC_gen("P-256"))};
  made.certificate = Begin(organisation, name + "-" + std::to_string(number) + ".tidepool", lifetime_s,
                           made.key.get(), nullptr);
  X509* c = made.certificate.get();
  if (c == nullptr || !Extend(c, c, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
      !Extend(c, c, NID_key_usage, "critical,keyCertSign") ||
      !Extend(c, c, NID_subject_key_identifier, "hash") || X509_sign(c, made.key.get(), EVP_sha256()) == 0)
    return std::nullopt;
  return made;
}

bool IsNamed(const X509* authority, const std::string& name) {
  char text[128] = "";
  X509_NAME_get_text_by_NID(X509_get_subject_name(authority), NID_commonName, text, sizeof text);
  return std::string(text).starts_with(name + "-");
}

Certificate IssueFor(EVP_PKEY* key, const Issued& authority, const std::string& organisation,
                     int64_t lifetime_s, const std::vector<std::string>& dns_names) {
  X509* by = authority.certificate.get();
  Certificate made = Begin(organisation, dns_names.front(), lifetime_s, key, by);
  X509* c = made.get();
  std::string names;
  for (const std::string& name : dns_names) names += (names.empty() ? "DNS:" : ",DNS:") + name;
  if (c == nullptr || !Extend(c, by, NID_basic_constraints, "critical,CA:FALSE") ||
      !Extend(c, by, NID_key_usage, "critical,digitalSignature") ||
      !Extend(c, by, NID_ext_key_usage, "serverAuth,clientAuth") ||
      !Extend(c, by, NID_subject_alt_name, names) || X509_sign(c, authority.key.get(), EVP_sha256()) == 0)
    return nullptr;
  return made;
}

std::optional<Issued> Issue(const Issued& authority, const std::string& organisation, int64_t lifetime_s,
                            const std::vector<std::string>& dns_names) {
  Issued made{nullptr, Key(EVP_EC_gen("P-256"))};
  made.certificate = IssueFor(made.key.get(), authority, organisation, lifetime_s, dns_names);
  if (made.certificate == nullptr) return std::nullopt;
  return made;
}

std::optional<Request> MakeRequest() {
  Request made{Key(EVP_EC_gen("P-256")), ""};
  const std::unique_ptr<X509_REQ, Freed<X509_REQ_free>> request(X509_REQ_new());
  if (made.key == nullptr || request == nullptr || X509_REQ_set_pubkey(request.get(), made.key.get()) != 1 ||
      X509_REQ_sign(request.get(), made.key.get(), EVP_sha256()) == 0)
    return std::nullopt;
  const Memory out(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509_REQ(out.get(), request.get());
  made.pem = TextOf(out.get());
  return made;
}

Key KeyOfRequest(const std::string& pem) {
  const std::unique_ptr<X509_REQ, Freed<X509_REQ_free>> request(
      PEM_read_bio_X509_REQ(MemoryOf(pem).get(), nullptr, nullptr, nullptr));
  Key key(request == nullptr ? nullptr : X509_REQ_get_pubkey(request.get()));
  const bool good = key != nullptr && EVP_PKEY_is_a(key.get(), "EC") == 1 &&
                    EVP_PKEY_get_bits(key.get()) >= 256 && X509_REQ_verify(request.get(), key.get()) == 1;
  ERR_clear_error();  // the answer says it
  return good ? std::move(key) : nullptr;
}

}  // namespace tidepool::workers::x509
