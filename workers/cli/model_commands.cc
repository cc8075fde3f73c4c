// generate, import, export: using a model outside a run.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/real_file_system.h"
#include "core/model/adapter_files.h"
#include "core/model/gguf_import.h"
#include "workers/cli/answer_progress.h"
#include "workers/cli/command.h"
#include "workers/cli/model_lookup.h"
#include "workers/cli/model_session.h"
#include "workers/cli/ordered_lines.h"
#include "workers/data/model_folder.h"

namespace tidepool::workers {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// --- generate ---

struct GenerateOptions : SamplingOptions {
  std::string prompt, chat, input, output;
};

Status GenerateOne(const CommandContext& context, const GenerateOptions& o) {
  TP_ASSIGN_OR_RETURN(const auto text, TextOf(o));
  const char* key = o.chat.empty() ? "--prompt" : "--chat";
  if (!o.chat.empty() && !text->is_chat())
    return InvalidArgument("--chat: " + o.job.model.path + " has no chat template; use --prompt");
  const auto ids =
      o.chat.empty() ? text->EncodeText(o.prompt, true) : text->EncodeMessages({{"user", o.chat}});
  if (!ids.ok()) return ids.status().At(key);
  if (ids->empty()) return InvalidArgument(std::string(key) + ": it has no tokens");
  TP_ASSIGN_OR_RETURN(auto session, StartSession(context, o));
  std::vector<InferenceSession::Request> requests;
  for (const int32_t adapter : o.Asked())
    requests.push_back({0, 0, *ids, o.job.rollout.temperature == 0, 0, adapter});
  const bool one = requests.size() == 1;  // is shown as it comes
  text::Detokenizer detokenizer(text->tokenizer(), /*skip_special=*/true);
  TP_ASSIGN_OR_RETURN(const std::vector<Completion> done,
                      session->Complete(requests, [&](size_t, const std::vector<int32_t>& fresh) {
                        if (!one) return;
                        for (const int32_t id : fresh) std::fputs(detokenizer.Push(id).c_str(), stdout);
                        std::fflush(stdout);
                      }));
  if (one) std::printf("%s\n", detokenizer.Flush().c_str());
  for (size_t i = 0; i < done.size(); ++i) {
    if (!done[i].error.empty()) return Internal(done[i].error);
    if (!one)
      std::printf("== %s\n%s\n", o.adapter_names[i].c_str(), text->ResponseText(done[i].tokens.ids).c_str());
  }
  return OkStatus();
}

// Rows that `path` holds already, of these adapters in turn; none: of the model. A last line without its end
// was cut off by an interruption: it goes.
StatusOr<int64_t> RowsThere(const std::string& path, const std::vector<std::string>& adapters) {
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
    const json row = json::parse(line, nullptr, false);
    const std::string where = "--output: " + path + ":" + std::to_string(rows + 1);
    if (!row.is_object()) return InvalidArgument(where + " is no JSON object; remove the file to start over");
    const std::string asked = adapters.empty() ? "" : adapters[static_cast<size_t>(rows) % adapters.size()];
    const auto of = [](const std::string& name) {
      return name.empty() ? std::string("the model without an adapter") : "adapter " + name;
    };
    const auto named = row.find("adapter");  // of an input it may be anything
    if (const std::string has = named != row.end() && named->is_string() ? named->get<std::string>() : "";
        has != asked)
      return InvalidArgument(where + " is of " + of(has) + ", and here " + of(asked) +
                             " is asked; give another --output");
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

// JSONL in, JSONL out, in order: the n-th row of the output is the n-th of the input; of several adapters
// each has one, one after the other. What --output already holds is not made again; rows are written as soon
// as all before them are there.
Status GenerateFile(const CommandContext& context, const GenerateOptions& o) {
  std::ifstream in(o.input);
  if (!in) return NotFound("--input: " + o.input + " cannot be read");
  TP_ASSIGN_OR_RETURN(const int64_t have, RowsThere(o.output, o.adapter_names));
  TP_ASSIGN_OR_RETURN(const auto text, TextOf(o));
  std::vector<nlohmann::ordered_json> rows;  // keys as they stand in the input
  std::vector<InferenceSession::Request> requests;
  int64_t number = 0, inputs = 0, count = 0;  // count: of rows of the output
  const std::vector<int32_t> asked = o.Asked();
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = o.input + ":" + std::to_string(number);
    auto row = nlohmann::ordered_json::parse(line, nullptr, false);
    if (!row.is_object() || !row.contains("prompt"))
      return InvalidArgument(where + ": a row is a JSON object with a `prompt` (text or messages)");
    ++inputs;
    if (count + static_cast<int64_t>(asked.size()) <= have) {
      count += static_cast<int64_t>(asked.size());
      continue;
    }
    StatusOr<std::vector<int32_t>> ids = PromptOf(row, *text);
    if (!ids.ok()) return ids.status().At(where);
    if (ids->empty()) return InvalidArgument(where + ": the prompt has no tokens");
    for (const int32_t adapter : asked) {
      if (++count <= have) continue;
      requests.push_back({inputs, 0, *ids, o.job.rollout.temperature == 0, 0, adapter});
      rows.push_back(row);
      if (!o.adapter_names.empty())
        rows.back()["adapter"] = o.adapter_names[static_cast<size_t>(std::max(adapter, 0))];
    }
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
  TP_ASSIGN_OR_RETURN(auto session, StartSession(context, o));
  OrderedLines out(o.output, std::ios::app, rows.size());
  if (!out.ok()) return Unavailable("--output: " + o.output + " cannot be written");
  AnswerProgress progress(count, have);
  const auto on_done = [&](size_t i, const Completion& done) {
    nlohmann::ordered_json& row = rows[i];
    row["text"] = text->ResponseText(done.tokens.ids);
    row["tokens"] = done.tokens.size();
    row["ended"] = done.ended;
    if (!done.error.empty()) row["error"] = done.error;
    out.Put(i, row.dump());
    row = nullptr;
    progress.OnAnswer();
  };
  const auto done = session->Complete(
      requests,
      [&](size_t, const std::vector<int32_t>& ids) { progress.OnTokens(static_cast<int64_t>(ids.size())); },
      [&] { return !out.ok(); }, on_done);
  progress.Finish();
  if (!out.ok()) return Unavailable("--output: " + o.output + " cannot be written; is the disk full?");
  return done.status();
}

Status Generate(const CommandContext& context, GenerateOptions& o) {
  if (o.prompt.empty() + o.chat.empty() + o.input.empty() != 2)
    return InvalidArgument("generate: give one of --prompt, --chat and --input");
  if (!o.input.empty() && o.output.empty()) return InvalidArgument("generate: --input needs --output");
  if (o.input.empty() && !o.output.empty())
    return InvalidArgument("generate: --output is for --input; one answer goes to standard output");
  TP_RETURN_IF_ERROR(CheckSampling(o));
  TP_ASSIGN_OR_RETURN(const FoundModel model, TakeModel(o));
  if (model.is_policy()) {
    return InvalidArgument("--model: " + model.dir +
                           " is a policy of a control task, which writes no text; `tidepool eval --model " +
                           o.model + "` plays it");
  }
  return o.input.empty() ? GenerateOne(context, o) : GenerateFile(context, o);
}

// --- export: the model of a run, or of one of its checkpoints ---

struct ExportOptions {
  std::string from, base, out;
  bool merge = false;
};

Status MakeEmpty(const std::string& folder) {
  RealFileSystem real;
  TP_RETURN_IF_ERROR(real.MakeDirectories(folder));
  TP_ASSIGN_OR_RETURN(const auto there, real.List(folder));
  return there.empty() ? OkStatus() : AlreadyExists("--out: " + folder + " is not empty");
}

Status Export(const ExportOptions& o) {
  TP_ASSIGN_OR_RETURN(const FoundModel from,
                      o.base.empty() ? FindModel(o.from, "export") : FindAdapted(o.base, o.from, "export"));
  if (o.merge && from.adapter.empty())
    return InvalidArgument("--merge: " + from.dir + " is a whole model already; leave it out");
  TP_RETURN_IF_ERROR(MakeEmpty(o.out));
  if (o.merge) {
    TP_ASSIGN_OR_RETURN(const auto adapter, model::AdapterFolder::Open(from.adapter));
    TP_RETURN_IF_ERROR(model::MergeAdapter(adapter, from.dir, o.out));
    TP_RETURN_IF_ERROR(CopyTextFiles(from.dir, o.out));
    std::printf("%s, merged -> %s\n", DescribeModel(from).c_str(), o.out.c_str());
    return OkStatus();
  }
  if (!from.adapter.empty()) TP_RETURN_IF_ERROR(CopyTextFiles(from.dir, o.out));
  std::error_code error;
  fs::copy(from.adapter.empty() ? from.dir : from.adapter, o.out,
           fs::copy_options::recursive | fs::copy_options::overwrite_existing, error);
  if (error) return Unavailable(o.out + ": cannot be written (" + error.message() + ")");
  std::printf("%s -> %s\n", DescribeModel(from).c_str(), o.out.c_str());
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
  g->callback([generate, &context] {
    const Status status = Generate(context, *generate);
    if (!status.ok()) Fail(context, status, ModelExitCode(status));
  });

  struct Paths {
    std::string from, to, dtype = "bfloat16";
    bool keep_blocks = false;
  };
  auto import = std::make_shared<Paths>();
  CLI::App* i = app.add_subcommand("import", "Turn a GGUF file into a Hugging Face folder");
  i->add_option("file", import->from, "GGUF version 3")->required();
  i->add_option("--out", import->to, "Folder to make")->required();
  i->add_option("--dtype", import->dtype, "bfloat16 or float32")
      ->check(CLI::IsMember({"float32", "bfloat16"}));
  i->add_flag(
       "--keep-blocks", import->keep_blocks,
       "Keep its blocks of 8 or 4 bits (model.gguf), for adapters to be trained on: no tensor is written")
      ->excludes("--dtype");
  i->footer("Example: tidepool import model.gguf --out models/mine");
  i->callback([import, &context] {
    Status status = MakeEmpty(import->to);
    if (status.ok())
      status = import->keep_blocks
                   ? model::ImportGgufBlocks(import->from, import->to)
                   : model::ImportGguf(import->from, import->to, *FromWord<DType>(import->dtype));
    if (!status.ok()) return Fail(context, status);
    std::printf("%s -> %s\n", import->from.c_str(), import->to.c_str());
  });

  auto exported = std::make_shared<ExportOptions>();
  CLI::App* x = app.add_subcommand(
      "export", "Copy the model of a run, of one of its checkpoints (RUN:STEP), or the best one (RUN:best)");
  x->add_option(
       "run", exported->from,
       "Run (its folder, or the beginning of its name under runs/): final/ is taken, else its newest "
       "checkpoint; RUN:STEP names one, RUN:best what checkpoint.keep_best kept. Or the folder of an "
       "adapter")
      ->required();
  x->add_option("--out", exported->out, "Folder to make")->required();
  x->add_flag("--merge", exported->merge,
              "Of an adapter: a whole model, with the adapter's change added to its matrices");
  x->add_option("--model", exported->base, "Of an adapter: its model, in place of the folder that it names");
  x->footer("Example: tidepool export runs/quickstart-20260101T120000Z:20 --out models/quickstart");
  x->callback([exported, &context] {
    const Status status = Export(*exported);
    if (!status.ok()) Fail(context, status);
  });
}

}  // namespace tidepool::workers
