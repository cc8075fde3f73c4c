// generate, eval, import, export: using a model outside a run.
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/base/real_file_system.h"
#include "core/model/gguf_import.h"
#include "core/model/hugging_face.h"
#include "core/storage/checkpoint.h"
#include "core/storage/run_directory.h"
#include "core/tasks/data_source.h"
#include "core/tasks/reward.h"
#include "core/tasks/task.h"
#include "workers/cli/answer_progress.h"
#include "workers/cli/answer_statistics.h"
#include "workers/cli/command.h"
#include "workers/cli/inference.h"
#include "workers/controller/job.h"
#include "workers/data/model_folder.h"
#include "workers/data/row_source.h"

namespace tidepool::workers {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

DataConfig AnyTask() {
  DataConfig data;
  data.task = "products";  // prompts are brought; a source, and a job, need some data
  data.held_out = 0;
  return data;
}

struct SamplingOptions : InferenceOptions {
  std::string dtype;
  SamplingOptions() {
    job.name = "inference";
    job.data = AnyTask();
    job.reward.functions = {{.name = "exact_answer"}};
    job.rollout.group_size = 2;
    job.rollout.temperature = 0;
    job.rollout.max_new_tokens = 128;
    job.rollout.max_concurrent = 64;
    job.cluster.threads_per_slot = 2;
    job.train.micro_batch_tokens = 1'000'000;
    job.observe.trace = false;
  }
};

void AddSampling(CLI::App* command, SamplingOptions* o) {
  RolloutConfig& r = o->job.rollout;
  command->add_option("--model", o->job.model.path, "Hugging Face folder")->required();
  command->add_option("--dtype", o->dtype, "float32 or bfloat16; default: as stored")
      ->check(CLI::IsMember({"float32", "bfloat16"}));
  command
      ->add_option("--max-new-tokens", r.max_new_tokens,
                   "At most so many new tokens; an answer also ends where the model has no more positions")
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--temperature", r.temperature, "0: greedy (default)")->check(CLI::Range(0.0, 100.0));
  command->add_option("--top-k", r.top_k, "0: off");
  command->add_option("--top-p", r.top_p, "1: off")->check(CLI::Range(0.0, 1.0));
  command->add_option("--min-p", r.min_p, "0: off")->check(CLI::Range(0.0, 1.0));
  command->add_option("--stop", r.stop, "Stop strings");
  command->add_option("--seed", o->job.seed, "Of the sampling noise");
  command->add_option("--threads", o->job.cluster.threads_per_slot, "Cores to use")
      ->check(CLI::Range(1, 1024));
  command->add_flag("--deterministic", o->job.deterministic, "Results do not depend on the batch");
}

// A session has files in /dev/shm, and a worker: they go before this process does. A second signal ends it at
// once.
std::atomic<bool> interrupted{false};
void EndSessionOnSignal() {
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = true; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

// 2: wrong usage or input.
int ExitCodeOf(const Status& status) {
  const StatusCode code = status.code();
  return code == StatusCode::kUnavailable || code == StatusCode::kInternal || code == StatusCode::kAborted
             ? 3
             : 2;
}

// The type the weights are stored in, where it is one we compute in.
std::string StoredDtype(const std::string& dir) {
  std::ifstream in(dir + "/config.json");
  const json config = json::parse(in, nullptr, false);
  if (!config.is_object()) return "float32";
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (config.contains(key) && config[key] == "bfloat16") return "bfloat16";
  }
  return "float32";
}

StatusOr<std::unique_ptr<InferenceSession>> StartSession(const CommandContext& context,
                                                         const SamplingOptions& o) {
  const RolloutConfig& r = o.job.rollout;
  if (r.temperature == 0 && (r.top_k != 0 || r.top_p != 1 || r.min_p != 0))
    return InvalidArgument(std::string(r.top_k != 0   ? "--top-k"
                                       : r.top_p != 1 ? "--top-p"
                                                      : "--min-p") +
                           ": is for sampling, and --temperature is 0 (greedy); give one above 0");
  TP_RETURN_IF_ERROR(CheckModelFolder(o.job.model.path, "--model"));
  TP_RETURN_IF_ERROR(
      model::CheckHuggingFace(o.job.model.path));  // in milliseconds, before a worker is started
  TP_ASSIGN_OR_RETURN(const model::ModelSpec spec, model::ReadSpec(o.job.model.path));
  InferenceOptions options = o;
  options.max_position = spec.max_position;
  options.job.model.path = fs::absolute(o.job.model.path).string();
  options.job.model.dtype = *FromWord<DType>(o.dtype.empty() ? StoredDtype(o.job.model.path) : o.dtype);
  if (o.job.rollout.temperature == 0)
    options.job.rollout.temperature = 1;  // requests say that they are greedy
  TP_ASSIGN_OR_RETURN(options.worker_path, FindWorker({}, context.self_path));
  EndSessionOnSignal();
  options.stop = [] { return interrupted.load(); };
  return InferenceSession::Start(options);
}

// The text side of a model folder, without any data.
StatusOr<std::unique_ptr<RowSource>> TextOf(const SamplingOptions& o, const DataConfig& data, uint64_t seed) {
  TP_RETURN_IF_ERROR(CheckModelFolder(o.job.model.path, "--model"));
  JobConfig config;
  config.data = data;
  config.seed = seed;
  config.train.micro_batch_tokens = int64_t{1} << 40;
  config.data.max_prompt_tokens = int64_t{1} << 20;
  return RowSource::Create(config, o.job.model.path);
}

// --- generate ---

struct GenerateOptions : SamplingOptions {
  std::string prompt, chat, input, output;
};

Status GenerateOne(const CommandContext& context, const GenerateOptions& o) {
  TP_ASSIGN_OR_RETURN(auto session, StartSession(context, o));
  TP_ASSIGN_OR_RETURN(const auto text, TextOf(o, AnyTask(), o.job.seed));
  std::vector<int32_t> ids;
  if (!o.chat.empty()) {
    if (!text->is_chat())
      return InvalidArgument("--chat: " + o.job.model.path + " has no chat template; use --prompt");
    TP_ASSIGN_OR_RETURN(ids, text->EncodeMessages({{"user", o.chat}}));
  } else {
    TP_ASSIGN_OR_RETURN(ids, text->tokenizer().Encode(o.prompt, {.add_special = true}));
  }
  if (ids.empty()) return InvalidArgument("--prompt: it has no tokens");
  text::Detokenizer detokenizer(text->tokenizer(), /*skip_special=*/true);
  TP_ASSIGN_OR_RETURN(const std::vector<Completion> done,
                      session->Complete({{0, 0, ids, o.job.rollout.temperature == 0}},
                                        [&](size_t, const std::vector<int32_t>& fresh) {
                                          for (const int32_t id : fresh)
                                            std::fputs(detokenizer.Push(id).c_str(), stdout);
                                          std::fflush(stdout);
                                        }));
  std::printf("%s\n", detokenizer.Flush().c_str());
  if (!done[0].error.empty()) return Internal(done[0].error);
  return OkStatus();
}

// Rows that `path` holds already. A last line without its end was cut off by an interruption: it goes.
StatusOr<int64_t> RowsThere(const std::string& path) {
  std::ifstream old(path, std::ios::binary);
  if (!old) return 0;
  int64_t rows = 0;
  uintmax_t whole = 0;
  for (std::string line; std::getline(old, line);) {
    if (old.eof()) {
      std::error_code error;
      fs::resize_file(path, whole, error);
      if (error)
        return Unavailable("--output: " + path + " cannot be cut to its whole lines (" + error.message() +
                           ")");
      break;
    }
    whole += line.size() + 1;
    if (!json::parse(line, nullptr, false).is_object()) {
      return InvalidArgument("--output: " + path + ":" + std::to_string(rows + 1) +
                             " is no JSON object; remove the file to start over");
    }
    ++rows;
  }
  return rows;
}

StatusOr<std::vector<int32_t>> PromptOf(const nlohmann::ordered_json& row, const RowSource& text) {
  if (row["prompt"].is_string()) return text.EncodePrompt(row["prompt"].get<std::string>());
  if (!row["prompt"].is_array()) return InvalidArgument("`prompt` is neither text nor a list of messages");
  std::vector<tasks::Message> messages;
  for (const auto& m : row["prompt"]) {
    if (!m.is_object() || !m.contains("role") || !m.contains("content") || !m["role"].is_string() ||
        !m["content"].is_string()) {
      return InvalidArgument("a message has `role` and `content`, both text");
    }
    messages.push_back({m["role"].get<std::string>(), m["content"].get<std::string>()});
  }
  return text.EncodeMessages(messages);
}

// JSONL in, JSONL out, in order: the n-th row of the output is the n-th of the input. What --output already
// holds is not made again; rows are written as soon as all before them are there.
Status GenerateFile(const CommandContext& context, const GenerateOptions& o) {
  std::ifstream in(o.input);
  if (!in) return NotFound("--input: " + o.input + " cannot be read");
  TP_ASSIGN_OR_RETURN(const int64_t have, RowsThere(o.output));
  TP_ASSIGN_OR_RETURN(auto session, StartSession(context, o));
  TP_ASSIGN_OR_RETURN(const auto text, TextOf(o, AnyTask(), o.job.seed));
  std::vector<nlohmann::ordered_json> rows;  // keys as they stand in the input
  std::vector<InferenceSession::Request> requests;
  int64_t number = 0, count = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = o.input + ":" + std::to_string(number);
    auto row = nlohmann::ordered_json::parse(line, nullptr, false);
    if (!row.is_object() || !row.contains("prompt"))
      return InvalidArgument(where + ": a row is a JSON object with a `prompt` (text or messages)");
    if (++count <= have) continue;
    StatusOr<std::vector<int32_t>> ids = PromptOf(row, *text);
    if (!ids.ok()) return ids.status().At(where);
    if (ids->empty()) return InvalidArgument(where + ": the prompt has no tokens");
    requests.push_back({count, 0, std::move(*ids), o.job.rollout.temperature == 0});
    rows.push_back(std::move(row));
  }
  if (have > count) {
    return InvalidArgument("--output: " + o.output + " has " + std::to_string(have) +
                           " rows, more than the " + std::to_string(count) + " of " + o.input +
                           "; it belongs to another input");
  }
  if (requests.empty()) {
    std::fprintf(stderr, "%s: nothing left to do\n", o.output.c_str());
    return OkStatus();
  }
  std::ofstream out(o.output, std::ios::app);
  if (!out) return Unavailable("--output: " + o.output + " cannot be written");
  AnswerProgress progress(count, have);
  std::vector<std::string> lines(rows.size());  // ended, and not written yet
  size_t written = 0;
  const auto on_done = [&](size_t i, const Completion& done) {
    nlohmann::ordered_json& row = rows[i];
    row["text"] = text->ResponseText(done.tokens.ids);
    row["tokens"] = done.tokens.size();
    row["ended"] = done.ended;
    if (!done.error.empty()) row["error"] = done.error;
    lines[i] = row.dump() + "\n";
    row = nullptr;
    for (; written < lines.size() && !lines[written].empty(); ++written) {
      out << lines[written];
      lines[written].clear();
    }
    out.flush();
    progress.OnAnswer();
  };
  const auto done = session->Complete(
      requests,
      [&](size_t, const std::vector<int32_t>& ids) { progress.OnTokens(static_cast<int64_t>(ids.size())); },
      [&] { return !out; }, on_done);
  progress.Finish();
  if (!out) return Unavailable("--output: " + o.output + " cannot be written; is the disk full?");
  return done.status();
}

void Generate(CommandContext& context, const GenerateOptions& o) {
  if (o.prompt.empty() + o.chat.empty() + o.input.empty() != 2)
    return Fail(context, InvalidArgument("generate: give one of --prompt, --chat and --input"));
  if (!o.input.empty() && o.output.empty())
    return Fail(context, InvalidArgument("generate: --input needs --output"));
  if (o.input.empty() && !o.output.empty())
    return Fail(context,
                InvalidArgument("generate: --output is for --input; one answer goes to standard output"));
  const Status status = o.input.empty() ? GenerateOne(context, o) : GenerateFile(context, o);
  if (!status.ok()) Fail(context, status, ExitCodeOf(status));
}

// --- eval ---

struct EvalOptions : SamplingOptions {
  std::string task, data, reward = "exact_answer", output;
  std::vector<std::string> task_options;
  int64_t limit = 0, held_out = -1, samples = 1;
  bool as_json = false;
};

Status Eval(const CommandContext& context, const EvalOptions& o) {
  if (o.task.empty() == o.data.empty()) return InvalidArgument("eval: give one of --task and --data");
  if (!o.data.empty() && (!o.task_options.empty() || o.held_out >= 0))
    return InvalidArgument(std::string("eval: ") + (o.held_out >= 0 ? "--held-out" : "--option") +
                           " is for --task; all rows of --data are asked, or as many as --limit says");
  DataConfig data;
  data.task = o.task;
  if (!o.task.empty()) {
    for (const std::string& option : o.task_options) {
      const auto equals = option.find('=');
      if (equals == std::string::npos) return InvalidArgument("--option: " + option + " is not name=value");
      data.options[option.substr(0, equals)] = option.substr(equals + 1);
    }
    if (o.held_out >= 0) {
      data.held_out = o.held_out;
    } else {
      TP_ASSIGN_OR_RETURN(const int64_t units, tasks::CountUnits(o.task, data.options));
      data.held_out = std::min<int64_t>(data.held_out, units / 4);
    }
  } else {
    data.eval_path = o.data;
  }
  TP_ASSIGN_OR_RETURN(const auto text, TextOf(o, data, o.job.seed));
  TP_ASSIGN_OR_RETURN(const auto reward, tasks::MakeReward(o.reward));
  const int64_t available = text->data().held_out_size();
  const int64_t n = o.limit > 0 ? std::min(o.limit, available) : available;
  if (n <= 0) return InvalidArgument("eval: there are no questions to ask");
  if (o.samples > 1 && o.job.rollout.temperature == 0)
    return InvalidArgument(
        "eval: --samples above 1 needs --temperature above 0; greedy answers are all the same");
  std::vector<EncodedRow> rows;
  std::vector<InferenceSession::Request> requests;
  for (int64_t i = 0; i < n; ++i) {
    TP_ASSIGN_OR_RETURN(EncodedRow row, text->HeldOut(i));
    for (int32_t k = 0; k < o.samples; ++k)
      requests.push_back({i, k, row.prompt, o.job.rollout.temperature == 0});
    rows.push_back(std::move(row));
  }
  TP_ASSIGN_OR_RETURN(auto session, StartSession(context, o));
  std::ofstream dump;
  if (!o.output.empty()) {
    dump.open(o.output);
    if (!dump) return Unavailable("--output: " + o.output + " cannot be written");
  }
  AnswerProgress progress(static_cast<int64_t>(requests.size()), 0);
  TP_ASSIGN_OR_RETURN(const std::vector<Completion> done,
                      session->Complete(
                          requests,
                          [&](size_t, const std::vector<int32_t>& ids) {
                            progress.OnTokens(static_cast<int64_t>(ids.size()));
                          },
                          {}, [&](size_t, const Completion&) { progress.OnAnswer(); }));
  progress.Finish();
  int64_t failed = 0;
  std::vector<QuestionScore> scores(static_cast<size_t>(n));
  for (size_t i = 0; i < done.size(); ++i) {
    const EncodedRow& row = rows[static_cast<size_t>(requests[i].ordinal)];
    tasks::RewardInput input{row.question.prompt,         row.question.answer,
                             row.question.fields,         text->ResponseText(done[i].tokens.ids),
                             done[i].tokens.size(),       done[i].ended,
                             o.job.rollout.max_new_tokens};
    const tasks::Verdict verdict = reward(input);
    const bool scored = done[i].error.empty() && verdict.outcome == tasks::Verdict::Outcome::kOk;
    if (!scored) ++failed;
    QuestionScore& of = scores[static_cast<size_t>(requests[i].ordinal)];
    if (scored) ++of.answers, of.sum += verdict.score, of.right += verdict.score >= 1 ? 1 : 0;
    if (dump.is_open()) {
      dump << json{{"prompt", input.prompt},
                   {"answer", input.answer},
                   {"text", input.text},
                   {"score", scored ? json(verdict.score) : json(nullptr)},
                   {"ended", input.ended}}
                  .dump()
           << "\n";
    }
  }
  if (dump.is_open()) {
    dump.close();
    if (!dump) return Unavailable("--output: " + o.output + " cannot be written; is the disk full?");
  }
  if (failed == static_cast<int64_t>(done.size())) {
    const std::string& why = done.front().error;
    return Internal("eval: no answer could be scored" + (why.empty() ? "" : "; the first: " + why));
  }
  const MeanInterval accuracy = Accuracy(scores);
  json result = {{"accuracy", accuracy.mean}, {"low", accuracy.low},
                 {"high", accuracy.high},     {"questions", n},
                 {"samples", o.samples},      {"unscored", failed}};
  for (int64_t k = 1; k <= o.samples && o.samples > 1; k *= 2) {
    const MeanInterval pass = PassAtK(scores, k);
    const std::string name = "pass@" + std::to_string(k);
    result[name] = pass.mean, result[name + "_low"] = pass.low, result[name + "_high"] = pass.high;
  }
  if (o.as_json) {
    std::printf("%s\n", result.dump().c_str());
  } else {
    std::printf("accuracy %.1f %% (95 %% interval %.1f to %.1f) on %lld questions%s\n", 100 * accuracy.mean,
                100 * accuracy.low, 100 * accuracy.high, static_cast<long long>(n),
                failed > 0 ? (", " + std::to_string(failed) + " not scored").c_str() : "");
    for (int64_t k = 1; k <= o.samples && o.samples > 1; k *= 2) {
      const std::string name = "pass@" + std::to_string(k);
      std::printf("%s %.3f (%.3f to %.3f)\n", name.c_str(), result[name].get<double>(),
                  result[name + "_low"].get<double>(), result[name + "_high"].get<double>());
    }
  }
  return OkStatus();
}

// --- export: the model of a run, or of one of its checkpoints ---

Status Export(const std::string& what, const std::string& out) {
  const auto colon = what.rfind(':');
  const bool with_step = colon != std::string::npos && colon + 1 < what.size() &&
                         what.find_first_not_of("0123456789", colon + 1) == std::string::npos;
  const std::string run = with_step ? what.substr(0, colon) : what;
  std::string from = storage::RunPaths(run).final_model();
  RealFileSystem real;
  TP_ASSIGN_OR_RETURN(const FileInfo folder, real.Stat(run));
  if (!folder.is_directory) return NotFound(run + ": no such run directory");
  TP_ASSIGN_OR_RETURN(const FileInfo final, real.Stat(from));
  if (with_step || !final.is_directory) {
    TP_ASSIGN_OR_RETURN(const std::vector<StepNumber> steps,
                        storage::ListCheckpoints(real, storage::RunPaths(run).checkpoints()));
    if (steps.empty()) return NotFound(run + ": has neither a final model nor a checkpoint yet");
    const StepNumber step = with_step ? StepNumber{std::stoll(what.substr(colon + 1))} : steps.back();
    if (std::find(steps.begin(), steps.end(), step) == steps.end()) {
      std::string have;
      for (const StepNumber s : steps) have += " " + std::to_string(s.value);
      return NotFound(run + ": has no checkpoint of step " + std::to_string(step.value) + "; there are" +
                      have);
    }
    const std::string dir = storage::RunPaths(run).checkpoints() + "/" + storage::CheckpointName(step);
    TP_RETURN_IF_ERROR(storage::VerifyCheckpoint(real, dir, std::nullopt).status());
    from = dir + "/model";
  }
  TP_RETURN_IF_ERROR(real.MakeDirectories(out));
  TP_ASSIGN_OR_RETURN(const auto there, real.List(out));
  if (!there.empty()) return AlreadyExists("--out: " + out + " is not empty");
  std::error_code error;
  fs::copy(from, out, fs::copy_options::recursive, error);
  if (error) return Unavailable(out + ": cannot be written (" + error.message() + ")");
  std::printf("%s -> %s\n", from.c_str(), out.c_str());
  return OkStatus();
}

}  // namespace

void AddModelCommands(CLI::App& app, CommandContext& context) {
  auto generate = std::make_shared<GenerateOptions>();
  CLI::App* g = app.add_subcommand("generate", "Complete a prompt, a chat turn, or a JSONL file of them");
  AddSampling(g, generate.get());
  g->add_option("--prompt", generate->prompt, "Text as it is");
  g->add_option("--chat", generate->chat, "One user message, rendered with the model's chat template");
  g->add_option("--input", generate->input, "JSONL with `prompt` (text or messages)");
  g->add_option("--output", generate->output,
                "JSONL with the rows and their `text`; what it holds already is kept");
  g->footer(
      "Example: tidepool generate --model models/smollm2-135m-instruct --chat \"What is the capital of "
      "France?\"");
  g->callback([generate, &context] { Generate(context, *generate); });

  auto eval = std::make_shared<EvalOptions>();
  eval->job.rollout.max_new_tokens = 64;
  CLI::App* e =
      app.add_subcommand("eval", "Accuracy of a model on a task's held-out questions or a JSONL file");
  AddSampling(e, eval.get());
  e->add_option("--task", eval->task, "Generated task (its held-out questions)");
  e->add_option("--option", eval->task_options, "Option of the task, name=JSON (factors=[2,9])");
  e->add_option("--held-out", eval->held_out, "Held-out questions, in the task's unit");
  e->add_option("--data", eval->data, "JSONL with `prompt` and `answer`");
  e->add_option("--reward", eval->reward, "How answers are scored");
  e->add_option("--limit", eval->limit, "At most so many questions; 0: all");
  e->add_option("--samples", eval->samples, "Answers a question, for pass@k")->check(CLI::Range(1, 1024));
  e->add_option("--output", eval->output, "JSONL with every answer");
  e->add_flag("--json", eval->as_json, "One JSON object");
  e->footer("Example: tidepool eval --model models/smollm2-135m-instruct --task products");
  e->callback([eval, &context] {
    const Status status = Eval(context, *eval);
    if (!status.ok()) Fail(context, status, ExitCodeOf(status));
  });

  struct Paths {
    std::string from, to, dtype = "bfloat16";
  };
  auto import = std::make_shared<Paths>();
  CLI::App* i = app.add_subcommand("import", "Turn a GGUF file into a Hugging Face folder");
  i->add_option("file", import->from, "GGUF version 3")->required();
  i->add_option("--out", import->to, "Folder to make")->required();
  i->add_option("--dtype", import->dtype, "bfloat16 or float32")
      ->check(CLI::IsMember({"float32", "bfloat16"}));
  i->footer("Example: tidepool import model.gguf --out models/mine");
  i->callback([import, &context] {
    const Status status = model::ImportGguf(import->from, import->to, *FromWord<DType>(import->dtype));
    if (!status.ok()) return Fail(context, status);
    std::printf("%s -> %s\n", import->from.c_str(), import->to.c_str());
  });

  auto exported = std::make_shared<Paths>();
  CLI::App* x =
      app.add_subcommand("export", "Copy the model of a run, or of one of its checkpoints (RUN:STEP)");
  x->add_option("run", exported->from, "Run directory, or RUN:STEP")->required();
  x->add_option("--out", exported->to, "Folder to make")->required();
  x->footer("Example: tidepool export runs/quickstart-20260101T120000Z:20 --out models/quickstart");
  x->callback([exported, &context] {
    const Status status = Export(exported->from, exported->to);
    if (!status.ok()) Fail(context, status);
  });
}

}  // namespace tidepool::workers
