#pragma once
// A folder with the certificates of all roles, as a controller keeps it.

#include <string>

#include "core/base/status.h"
#include "workers/net/certificates.h"

namespace tidepool::workers {

inline StatusOr<Identity> Certified(const std::string& dir, const std::string& run_id) {
  TP_ASSIGN_OR_RETURN(const JobCertificates certificates, FindOrMakeCertificates(dir, run_id));
  TP_RETURN_IF_ERROR(KeepCertificates(certificates, dir));
  return certificates.controller;
}

}  // namespace tidepool::workers
