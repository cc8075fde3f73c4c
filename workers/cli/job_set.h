#pragma once
// What runs a job on a Kubernetes cluster: a JobSet (jobset.x-k8s.io) of a controller and its hosts, and what
// it needs beside it. Pure.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace tidepool::workers {

inline constexpr int64_t kPodsOfHostsMost = 4096;

enum class PodCertificates : uint8_t {
  kRun,          // the run makes them in its folder
  kCertManager,  // cert-manager does
  kSecret        // they are in a secret
};

struct PodJob {
  std::string name;                          // of the JobSet and what belongs to it
  std::string name_space, image, queue;      // namespace and queue of Kueue; empty: none is named
  std::map<std::string, std::string> files;  // the config and what it names: path from their folder, text
  std::string config;                        // that of the config
  std::string run;                           // folder of the run under runs/
  std::vector<std::string> overrides;        // all that the controller is given
  int64_t hosts = 1, slots_per_host = 1, threads_per_host = 1;
  int64_t hosts_spare = 0;  // that the run goes on without (cluster.min_slots)
  bool gpus = false;        // a GPU for each slot
  std::string memory;       // of a pod of a host; empty: not said
  std::string controller_memory = "2Gi";
  std::string claim;  // one that is there; empty: one is made, with what follows
  std::string storage = "100Gi", storage_class;
  PodCertificates certificates = PodCertificates::kRun;
  std::map<std::string, std::string> secret;  // kSecret: file, PEM
};

// The name that the controller's pod has for the others of its JobSet.
std::string ControllerHost(const std::string& name);

// kInvalidArgument: an option that Kubernetes would refuse, by name.
Status CheckPodJob(const PodJob& job);
// YAML, several documents.
std::string JobSetManifest(const PodJob& job);

}  // namespace tidepool::workers
