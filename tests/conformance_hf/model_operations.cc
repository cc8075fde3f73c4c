#include "tests/conformance_hf/model_operations.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/device/cpu/cpu_device.h"
#include "core/engine/engine.h"
#include "core/model/adapter_files.h"
#include "core/model/row_operations.h"
#include "core/text/tokenizer.h"
#include "core/train/value_model.h"

namespace tidepool::conformance_hf {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kKeptMax = 3;
constexpr int64_t kTokensMax = int64_t{1} << 18;
constexpr int64_t kAnswerBytesMax = int64_t{1} << 30;
constexpr int64_t kKvBytesMax = int64_t{8} << 30;
constexpr int64_t kPiece = 512;  // rows of one forward

StatusOr<std::vector<int32_t>> Numbers(const Json& request, const char* key, int64_t below,
                                       const std::string& what) {
  if (!request.contains(key) || !request[key].is_array() || request[key].empty()) {
    return InvalidArgument("the request has no list \"" + std::string(key) + "\"");
  }
  if (static_cast<int64_t>(request[key].size()) > kTokensMax) {
    return InvalidArgument("\"" + std::string(key) + "\" has " + std::to_string(request[key].size()) +
                           " numbers; at most " + std::to_string(kTokensMax));
  }
  std::vector<int32_t> out;
  for (const Json& v : request[key]) {
    if (!v.is_number_integer() || v.get<int64_t>() < 0 || v.get<int64_t>() >= below) {
      return InvalidArgument("\"" + std::string(key) + "\": found " + v.dump().substr(0, 40) + ", expected " +
                             what + " below " + std::to_string(below));
    }
    out.push_back(v.get<int32_t>());
  }
  return out;
}

StatusOr<int64_t> Integer(const Json& request, const char* key, int64_t low, int64_t high) {
  if (!request.contains(key) || !request[key].is_number_integer() || request[key].get<int64_t>() < low ||
      request[key].get<int64_t>() > high) {
    return InvalidArgument("\"" + std::string(key) + "\" is expected to be an integer, " +
                           std::to_string(low) + " to " + std::to_string(high));
  }
  return request[key].get<int64_t>();
}

StatusOr<std::string> FolderOf(const Json& request) {
  if (!request.contains("model") || !request["model"].is_string())
    return InvalidArgument("the request has no string \"model\"");
  return request["model"].get<std::string>();
}

std::string Base64(const float* values, int64_t count) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto* bytes = reinterpret_cast<const uint8_t*>(values);
  const int64_t n = count * 4;
  std::string out;
  out.reserve(static_cast<size_t>((n + 2) / 3 * 4));
  for (int64_t i = 0; i < n; i += 3) {
    const uint32_t left = static_cast<uint32_t>(std::min<int64_t>(3, n - i));
    const uint32_t word = uint32_t{bytes[i]} << 16 | (left > 1 ? uint32_t{bytes[i + 1]} << 8 : 0) |
                          (left > 2 ? bytes[i + 2] : 0);
    out += kDigits[word >> 18];
    out += kDigits[word >> 12 & 63];
    out += left > 1 ? kDigits[word >> 6 & 63] : '=';
    out += left > 2 ? kDigits[word & 63] : '=';
  }
  return out;
}

Status CheckLength(const model::ModelSpec& spec, model::DType dtype, int64_t tokens) {
  if (spec.ends_at_max_position && tokens > spec.max_position) {
    return Unimplemented(
        std::to_string(tokens) + " tokens are more than max_position_embeddings " +
        std::to_string(spec.max_position) +
        "; beyond it this model's sliding window or rope scaling would count, which is not implemented");
  }
  if (2 * spec.layers * tokens * spec.kv_heads * spec.head_size * model::Bytes(dtype) > kKvBytesMax) {
    return ResourceExhausted(std::to_string(tokens) +
                             " tokens need more than 8 GiB of KV memory on this model");
  }
  return OkStatus();
}

// Calls `use(first row, hidden)` with the final hidden rows of ids, piece by piece.
Status Prefill(const model::Weights& weights, const model::Decoder& decoder, const std::vector<int32_t>& ids,
               const std::function<void(int64_t, const device::View&)>& use) {
  const model::ModelSpec& s = weights.spec();
  const auto n = static_cast<int64_t>(ids.size());
  TP_RETURN_IF_ERROR(CheckLength(s, weights.dtype(), n));
  device::Device& device = decoder.device();
  const device::Array k = device.Take(s.layers * n, s.kv_heads * s.head_size, weights.dtype()),
                      v = device.Take(s.layers * n, s.kv_heads * s.head_size, weights.dtype());
  const std::vector<device::KvRun> runs = {{0, static_cast<int32_t>(n)}};
  for (int64_t from = 0; from < n; from += kPiece) {
    const int64_t rows = std::min(kPiece, n - from);
    std::vector<int32_t> positions, lengths;
    for (int64_t i = from; i < from + rows; ++i)
      positions.push_back(static_cast<int32_t>(i)), lengths.push_back(static_cast<int32_t>(i + 1));
    const std::vector<int32_t> first_run(static_cast<size_t>(rows), 0);
    const model::RaggedBatch batch{
        std::span(ids).subspan(static_cast<size_t>(from), static_cast<size_t>(rows)),
        positions,
        positions,
        first_run,
        lengths,
        runs};
    use(from, decoder.Forward(batch, {k.view, v.view}).view);
  }
  return OkStatus();
}

// Folder of an adapter of the model; empty: none.
StatusOr<std::string> AdapterOf(const Json& request) {
  if (!request.contains("adapter")) return std::string();
  if (!request["adapter"].is_string()) return InvalidArgument("\"adapter\" is no string");
  return request["adapter"].get<std::string>();
}

}  // namespace

ModelOperations::ModelOperations() = default;
ModelOperations::~ModelOperations() = default;

StatusOr<ModelOperations::Loaded*> ModelOperations::Load(const Json& request, model::DType dtype) {
  TP_ASSIGN_OR_RETURN(const std::string folder, FolderOf(request));
  TP_ASSIGN_OR_RETURN(const std::string adapter, AdapterOf(request));
  for (auto it = kept_.begin(); it != kept_.end(); ++it) {
    if (it->folder != folder || it->adapter != adapter || it->dtype != dtype) continue;
    kept_.splice(kept_.begin(), kept_, it);
    return &kept_.front();
  }
  TP_ASSIGN_OR_RETURN(model::ModelSpec spec, model::ReadSpec(folder));
  spec.eos_token_ids.clear();  // model.greedy does not stop
  // The reference goes on beyond max_position_embeddings where nothing changes there.
  if (!spec.ends_at_max_position) spec.max_position = std::max(spec.max_position, kTokensMax);
  if (kept_.size() >= kKeptMax) kept_.pop_back();
  Loaded loaded;
  loaded.folder = folder;
  loaded.adapter = adapter;
  loaded.dtype = dtype;
  TP_ASSIGN_OR_RETURN(loaded.weights, model::LoadTensors(spec, folder, dtype));
  if (!adapter.empty()) {
    TP_ASSIGN_OR_RETURN(const auto stored, model::AdapterFolder::Open(adapter));
    TP_RETURN_IF_ERROR(stored.CheckBase(folder));
    TP_ASSIGN_OR_RETURN(loaded.weights,
                        model::LoadAdapter(adapter, std::move(loaded.weights), stored.spec()));
  }
  loaded.decoder = std::make_unique<model::Decoder>(*loaded.weights, std::make_shared<device::CpuDevice>());
  kept_.push_front(std::move(loaded));
  return &kept_.front();
}

StatusOr<Json> ModelOperations::Logits(const Json& request) {
  const std::string name = request.contains("dtype") && request["dtype"].is_string()
                               ? request["dtype"].get<std::string>()
                               : "float32";
  if (name != "float32" && name != "bfloat16")
    return InvalidArgument("\"dtype\" is " + name + ", expected float32 or bfloat16");
  TP_ASSIGN_OR_RETURN(Loaded * loaded,
                      Load(request, name == "float32" ? model::DType::kFloat32 : model::DType::kBFloat16));
  const int64_t vocab = loaded->weights->spec().vocab_size;
  TP_ASSIGN_OR_RETURN(std::vector<int32_t> ids, Numbers(request, "ids", vocab, "a token id"));
  TP_ASSIGN_OR_RETURN(const std::vector<int32_t> positions,
                      Numbers(request, "positions", static_cast<int64_t>(ids.size()), "a position"));
  const auto rows = static_cast<int64_t>(positions.size());
  if (rows * vocab * 4 > kAnswerBytesMax)
    return ResourceExhausted("the answer would be larger than 1 GiB; ask for fewer positions at a time");
  ids.resize(static_cast<size_t>(*std::max_element(positions.begin(), positions.end())) + 1);
  std::vector<float> out(static_cast<size_t>(rows * vocab));
  TP_RETURN_IF_ERROR(
      Prefill(*loaded->weights, *loaded->decoder, ids, [&](int64_t from, const device::View& hidden) {
        for (size_t i = 0; i < positions.size(); ++i) {
          const int64_t at_row = positions[i] - from;
          if (at_row < 0 || at_row >= hidden.rows) continue;
          const std::vector<float> row =
              model::ToHost(loaded->decoder->device(), loaded->decoder->Logits(hidden.Rows(at_row, 1)).view);
          std::ranges::copy(row, out.begin() + static_cast<std::ptrdiff_t>(i) * vocab);
        }
      }));
  return Json{{"logits", {{"shape", {rows, vocab}}, {"b64", Base64(out.data(), rows * vocab)}}}};
}

StatusOr<Json> ModelOperations::LogProbs(const Json& request) {
  TP_ASSIGN_OR_RETURN(Loaded * loaded, Load(request, model::DType::kFloat32));
  TP_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                      Numbers(request, "ids", loaded->weights->spec().vocab_size, "a token id"));
  const auto n = static_cast<int64_t>(ids.size());
  if (n < 2) return Json{{"logprobs", Json::array()}};
  TP_ASSIGN_OR_RETURN(const int64_t start, Integer(request, "start", 1, n));
  double temperature = 1;
  if (request.contains("temperature") && !request["temperature"].is_null()) {
    if (!request["temperature"].is_number())
      return InvalidArgument("\"temperature\" is expected to be a number");
    temperature = request["temperature"].get<double>();
  }
  if (!(temperature > 1e-6) || !(temperature < 1e6))
    return InvalidArgument("\"temperature\" is expected to be 1e-6 to 1e6");
  Json out = Json::array();
  // The last token is not read: nothing follows it.
  const std::vector<int32_t> read(ids.begin(), ids.end() - 1);
  TP_RETURN_IF_ERROR(
      Prefill(*loaded->weights, *loaded->decoder, read, [&](int64_t from, const device::View& hidden) {
        constexpr int64_t kRows = 64;  // of logits at a time
        for (int64_t r = 0; r < hidden.rows; r += kRows) {
          const int64_t m = std::min(kRows, hidden.rows - r);
          if (from + r + m < start) continue;
          const device::Array logits = loaded->decoder->Logits(hidden.Rows(r, m));
          std::vector<float> logprobs(static_cast<size_t>(m));
          model::TokenLogProbs(
              loaded->decoder->device(), logits.view,
              std::span(ids).subspan(static_cast<size_t>(from + r + 1), static_cast<size_t>(m)),
              static_cast<float>(temperature), logprobs);
          for (int64_t i = 0; i < m; ++i) {
            if (from + r + i + 1 >= start) out.push_back(logprobs[static_cast<size_t>(i)]);
          }
        }
      }));
  return Json{{"logprobs", std::move(out)}};
}

// As a grader asks a reward model: the value of its head after the last token.
StatusOr<Json> ModelOperations::Value(const Json& request) {
  TP_ASSIGN_OR_RETURN(Loaded * loaded, Load(request, model::DType::kFloat32));
  TP_ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                      Numbers(request, "ids", loaded->weights->spec().vocab_size, "a token id"));
  if (ids.empty()) return InvalidArgument("\"ids\" is empty");
  if (!loaded->weights->spec().value_head) return InvalidArgument("\"model\" has no value head");
  const auto tokens = static_cast<int64_t>(ids.size()) + 1;
  train::Row row;
  row.response = {ids.front()};  // that is not read
  row.prompt = std::move(ids);
  const std::vector<int64_t> places = {0};
  TP_ASSIGN_OR_RETURN(const auto values, train::ValuesOf(*loaded->weights, *loaded->decoder, tokens,
                                                         std::span(&row, 1), places));
  return Json{{"value", values[0].back()}};
}

StatusOr<Json> ModelOperations::Greedy(const Json& request) {
  TP_ASSIGN_OR_RETURN(Loaded * loaded, Load(request, model::DType::kFloat32));
  TP_ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                      Numbers(request, "ids", loaded->weights->spec().vocab_size, "a token id"));
  TP_ASSIGN_OR_RETURN(const int64_t fresh,
                      Integer(request, "max_new_tokens", 0, kTokensMax - static_cast<int64_t>(ids.size())));
  if (fresh == 0) return Json{{"ids", Json::array()}};
  const int64_t total = static_cast<int64_t>(ids.size()) + fresh;
  TP_RETURN_IF_ERROR(CheckLength(loaded->weights->spec(), model::DType::kFloat32, total));
  engine::EngineOptions options;
  options.kv_cache_tokens = (total / options.block_tokens + 2) * options.block_tokens;
  options.max_batched_tokens = kPiece;
  options.max_running = 1;
  TP_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine,
                      engine::Engine::Create(*loaded->weights, options));
  engine::ChunkRequest chunk;
  chunk.prompt = std::move(ids);
  chunk.max_new_tokens = chunk.max_total_new = fresh;
  chunk.sampling.temperature = 0;
  TP_RETURN_IF_ERROR(engine->Add(std::move(chunk)));
  std::vector<int32_t> out;
  while (engine->HasWork()) {
    for (const engine::Delta& delta : engine->Step().deltas) {
      if (delta.finish == engine::FinishReason::kError) return Internal(delta.error);
      out.insert(out.end(), delta.ids.begin(), delta.ids.end());
    }
  }
  if (static_cast<int64_t>(out.size()) != fresh)
    return Internal("the engine gave " + std::to_string(out.size()) + " tokens instead of " +
                    std::to_string(fresh));
  return Json{{"ids", out}};
}

StatusOr<Json> ModelOperations::Save(const Json& request) {
  TP_ASSIGN_OR_RETURN(const std::string folder, FolderOf(request));
  if (!request.contains("out") || !request["out"].is_string())
    return InvalidArgument("the request has no string \"out\"");
  const bool narrow = request.contains("dtype") && request["dtype"] == "bfloat16";
  TP_ASSIGN_OR_RETURN(const int64_t shard, Integer(request, "max_shard_bytes", 1, int64_t{1} << 50));
  TP_ASSIGN_OR_RETURN(const auto weights, model::LoadHuggingFace(folder, narrow ? model::DType::kBFloat16
                                                                                : model::DType::kFloat32));
  TP_RETURN_IF_ERROR(model::SaveHuggingFace(*weights, request["out"].get<std::string>(), shard, folder));
  return Json{{"ok", true}};
}

StatusOr<Json> ModelOperations::SaveAdapter(const Json& request) {
  TP_ASSIGN_OR_RETURN(const std::string adapter, AdapterOf(request));
  if (adapter.empty() || !request.contains("out") || !request["out"].is_string())
    return InvalidArgument("the request has no strings \"adapter\" and \"out\"");
  TP_ASSIGN_OR_RETURN(const Loaded* loaded, Load(request, model::DType::kFloat32));
  const model::Weights& weights = *loaded->weights;
  TP_RETURN_IF_ERROR(
      model::SaveAdapter({weights.spec(), *weights.adapter(), weights.dtype(), weights.bytes()},
                         loaded->folder, request["out"].get<std::string>()));
  return Json{{"ok", true}};
}

StatusOr<Json> ModelOperations::Check(const Json& request) {
  TP_ASSIGN_OR_RETURN(const std::string folder, FolderOf(request));
  TP_RETURN_IF_ERROR(model::CheckHuggingFace(folder));
  std::error_code error;
  if (std::filesystem::exists(folder + "/tokenizer.json", error))
    TP_RETURN_IF_ERROR(text::Tokenizer::Load(folder).status());
  return Json{{"ok", true}};
}

std::optional<StatusOr<Json>> ModelOperations::Run(const Json& request) {
  const std::string op = request["op"].get<std::string>();
  if (op == "model.logits") return Logits(request);
  if (op == "model.logprobs") return LogProbs(request);
  if (op == "model.greedy") return Greedy(request);
  if (op == "model.value") return Value(request);
  if (op == "model.check") return Check(request);
  if (op == "model.save") return Save(request);
  if (op == "adapter.save") return SaveAdapter(request);
  return std::nullopt;
}

}  // namespace tidepool::conformance_hf
