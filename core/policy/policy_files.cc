#include "core/policy/policy_files.h"

#include <cstring>
#include <filesystem>

#include "core/files/safetensors.h"

namespace tidepool::policy {

bool HasWeights(const std::string& folder) {
  std::error_code error;  // what cannot be looked at is not there for us
  return std::filesystem::exists(folder + "/model.safetensors", error);
}

Status LoadPolicy(const std::string& folder, model::Weights& weights) {
  TP_ASSIGN_OR_RETURN(const PolicySpec spec, ReadPolicySpec(folder));
  TP_ASSIGN_OR_RETURN(const auto stored, files::SafetensorsFolder::Open(folder));
  const std::vector<model::Parameter> layout = PolicyLayout(spec);
  if (layout.size() != weights.layout().size())
    return InvalidArgument(folder + "/config.json: describes another policy than the job's");
  for (size_t i = 0; i < layout.size(); ++i) {
    const model::Parameter& p = weights.layout()[i];
    const auto entry = stored->Find(p.name);
    if (!entry) return InvalidArgument(folder + ": has no tensor " + p.name);
    if (entry->info->dtype != files::DType::kF32 || entry->info->shape != p.shape ||
        layout[i].shape != p.shape) {
      return InvalidArgument(folder + ": tensor " + p.name +
                             " has another shape or dtype than the job's policy");
    }
    std::memcpy(weights.bytes().data() + p.offset * 4, entry->bytes().data(), entry->bytes().size());
  }
  return OkStatus();
}

Status SavePolicy(const PolicySpec& spec, const model::Weights& weights, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return FailedPrecondition(folder + ": cannot create the folder: " + error.message());
  std::vector<files::TensorSource> sources;
  for (const model::Parameter& p : weights.layout()) {
    sources.push_back(files::SourceOf(
        p.name, files::DType::kF32, p.shape,
        weights.bytes().subspan(static_cast<size_t>(p.offset * 4), static_cast<size_t>(p.numel() * 4))));
  }
  TP_RETURN_IF_ERROR(files::WriteSafetensorsFolder(folder, sources, int64_t{5} << 30));
  return WritePolicySpec(spec, folder);
}

}  // namespace tidepool::policy
