#pragma once
// OpenSSL's certificates and keys: read, looked at, made. For what is behind certificates.h. Thread-safe.

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tidepool::workers::x509 {

template <auto Free>
struct Freed {
  template <typename T>
  void operator()(T* p) const {
    Free(p);
  }
};
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;

std::string Pem(X509* certificate);
std::string Pem(EVP_PKEY* key);
// Null: the text is none.
Certificate ParseCertificate(const std::string& pem);
Key ParseKey(const std::string& pem);
// As many as there are.
std::vector<Certificate> ParseCertificates(const std::string& pem);

// Which of the authorities has made it; null: none.
X509* IssuerOf(X509* certificate, const std::vector<Certificate>& authorities);
bool AreOfEachOther(X509* certificate, EVP_PKEY* key);
bool IsFor(X509* certificate, const std::string& dns_name);
std::vector<std::string> DnsNamesOf(X509* certificate);
std::string OrganisationOf(const X509* certificate);
// Seconds since 1970.
int64_t BeginOf(const X509* certificate);
int64_t EndOf(const X509* certificate);

// What OpenSSL says of the last failure.
std::string WhatFailed();

struct Issued {
  Certificate certificate;
  Key key;
};
// Clocks of hosts differ: a certificate holds so long before it is made.
constexpr int64_t kBefore_s = 24L * 3600;
// From kBefore_s ago for another lifetime_s, with a key of its own. Null: the library failed.
// name: the first word of its common name.
std::optional<Issued> IssueAuthority(const std::string& organisation, int64_t lifetime_s,
                                     const std::string& name = "authority");
bool IsNamed(const X509* authority, const std::string& name);
// names: the first one is its common name.
std::optional<Issued> Issue(const Issued& authority, const std::string& organisation, int64_t lifetime_s,
                            const std::vector<std::string>& dns_names);
// The same for a key that somebody else has.
Certificate IssueFor(EVP_PKEY* key, const Issued& authority, const std::string& organisation,
                     int64_t lifetime_s, const std::vector<std::string>& dns_names);

// A signing request (PKCS #10): it proves that who asks has the key. What it says of names counts for
// nothing.
struct Request {
  Key key;
  std::string pem;
};
std::optional<Request> MakeRequest();
// Null: it is none, it is not signed by its key, or that is no elliptic one of 256 bits or more.
Key KeyOfRequest(const std::string& pem);

}  // namespace tidepool::workers::x509
