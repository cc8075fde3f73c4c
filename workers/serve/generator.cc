#include "workers/serve/generator.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <exception>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "core/base/rng.h"
#include "core/base/thread_annotations.h"
#include "workers/net/http_server.h"

namespace tidepool::workers {
namespace {

using Clock = std::chrono::steady_clock;
using scheduler::event::ChunkEnd;

// While requests run, their worker says something at least so often.
constexpr std::chrono::seconds kSilenceMax{300};
constexpr std::chrono::milliseconds kLooksEvery{200};  // for turns that are late

// SampleId::issue of turns that name their noise, and of those that do not.
constexpr int32_t kSeeded = 0, kUnseeded = 1;

int64_t RandomOrdinal() {
  const auto hex = RandomHex();
  return hex.ok() ? std::stoll(hex->substr(0, 14), nullptr, 16) : 0;
}

}  // namespace

struct Generator::Impl {
  struct Asked {
    Turn turn;
    TurnSink sink;
    int64_t left = 0;  // choices that have not ended
    Clock::time_point deadline;
  };
  struct Choice {
    int64_t turn = 0, choice = 0;
    SampleId tid;
    int32_t att = 0;
    GroupId gid;
    std::vector<int32_t> ids;  // of the answer so far
    int64_t room = 0;          // tokens of the KV cache to the end of its chunk
  };
  using Key = std::pair<SampleId, int32_t>;

  Impl(std::unique_ptr<InferenceSession> s, const GeneratorOptions& o) : session(std::move(s)), options(o) {}

  const std::unique_ptr<InferenceSession> session;
  const GeneratorOptions options;

  mutable Mutex mu;
  struct Command {
    int64_t turn = 0;
    std::optional<Asked> begin;
  };
  std::vector<Command> commands TP_GUARDED_BY(mu);  // a turn begins, or is cancelled
  std::optional<Status> end_all TP_GUARDED_BY(mu);
  Status closed TP_GUARDED_BY(mu);  // ok: turns may begin; what callers are told
  Status over
      TP_GUARDED_BY(mu);  // ok: the worker is there; for who runs this server: it has the worker's log
  bool serves TP_GUARDED_BY(mu) = false;
  int64_t next_turn TP_GUARDED_BY(mu) = 1;
  int64_t held TP_GUARDED_BY(mu) = 0;  // choices that have begun and not ended
  GeneratorCounts counts TP_GUARDED_BY(mu);

  // --- of the thread
  std::map<int64_t, Asked> turns;
  std::deque<Choice> waiting;
  std::map<Key, Choice> running;
  int64_t room_taken = 0;
  int32_t next_att = 0;
  int64_t next_gid = 0;
  int64_t next_ordinal = RandomOrdinal();
  Clock::time_point heard = Clock::now();
  Clock::time_point looked = Clock::now();
  std::jthread thread;  // waits: each of its waits has a deadline, and Wake ends it

  void Run(const std::stop_token& stop) {
    Status status = session->Await([this] {  // turns wait, and may be cancelled, late or ended
      TakeCommands();
      const auto now = Clock::now();
      if (now - looked >= kLooksEvery) EndLate(now);
    });
    {
      const MutexLock lock(mu);
      serves = status.ok();
    }
    while (status.ok() && !stop.stop_requested()) status = Round();
    if (status.ok()) return;
    const Status told = Unavailable("the model is not served any more");
    {
      const MutexLock lock(mu);
      over = status;
      if (closed.ok()) closed = told;
      serves = false;
    }
    TakeCommands();
    FailAll(told);
  }

  Status Round() {
    TakeCommands();
    Admit();
    TP_ASSIGN_OR_RETURN(std::vector<up::StepTokens> steps, session->Wait(std::chrono::milliseconds(50)));
    const auto now = Clock::now();
    if (!steps.empty() || running.empty()) heard = now;
    if (now - heard > kSilenceMax) return Unavailable("the worker has said nothing for too long");
    for (up::StepTokens& step : steps) {
      for (up::ChunkDelta& delta : step.chunks) Take(delta);
      const MutexLock lock(mu);
      counts.kv_usage = step.kv_usage;
    }
    if (now - looked >= kLooksEvery) EndLate(now);
    const MutexLock lock(mu);
    counts.running = static_cast<int64_t>(running.size());
    counts.waiting = held - counts.running;
    if (running.empty()) counts.kv_usage = 0;
    return OkStatus();
  }

  void TakeCommands() {
    std::vector<Command> taken;
    std::optional<Status> end;
    {
      const MutexLock lock(mu);
      taken = std::exchange(commands, {});
      end = std::exchange(end_all, std::nullopt);
    }
    for (Command& command : taken) {
      if (command.begin) {
        Queue(command.turn, *std::move(command.begin));
      } else if (turns.contains(command.turn)) {
        Count(&GeneratorCounts::cancelled);
        Forget(command.turn);
      }
    }
    if (end) FailAll(*end);
  }

  void Queue(int64_t number, Asked asked) {
    const Turn& turn = asked.turn;
    const int64_t ordinal = turn.seed ? *turn.seed & std::numeric_limits<int64_t>::max() : next_ordinal++;
    for (int64_t p = 0; p < static_cast<int64_t>(turn.prompts.size()); ++p) {
      const GroupId gid{next_gid++};
      for (int64_t i = 0; i < turn.samples; ++i) {
        Choice choice;
        choice.turn = number;
        choice.choice = p * turn.samples + i;
        choice.tid = {ordinal, turn.seed ? kSeeded : kUnseeded, static_cast<int32_t>(i)};
        choice.att = next_att;
        choice.gid = gid;
        next_att = next_att == std::numeric_limits<int32_t>::max() ? 0 : next_att + 1;
        waiting.push_back(std::move(choice));
      }
    }
    turns.emplace(number, std::move(asked));
  }

  [[nodiscard]] const std::vector<int32_t>& PromptOf(const Choice& c) const {
    const Turn& turn = turns.at(c.turn).turn;
    return turn.prompts[static_cast<size_t>(c.choice / turn.samples)];
  }
  [[nodiscard]] int64_t ChunkOf(const Choice& c) const {
    return std::min(options.chunk_tokens,
                    turns.at(c.turn).turn.max_new_tokens - static_cast<int64_t>(c.ids.size()));
  }
  [[nodiscard]] int64_t RoomOf(const Choice& c) const {
    return static_cast<int64_t>(PromptOf(c).size() + c.ids.size()) + ChunkOf(c);
  }

  void Admit() {
    while (!waiting.empty() && static_cast<int64_t>(running.size()) < options.max_running) {
      Choice& next = waiting.front();
      const int64_t room = RoomOf(next);
      if (!running.empty() && room_taken + room > options.kv_tokens) return;
      const Key key{next.tid, next.att};
      Choice& now = running.emplace(key, std::move(next)).first->second;
      waiting.pop_front();
      if (now.choice == 0) {
        const MutexLock lock(mu);
        for (const auto& prompt : turns.at(now.turn).turn.prompts)
          counts.prompt_tokens += static_cast<int64_t>(prompt.size());
      }
      StartChunk(now);
    }
  }

  void StartChunk(Choice& c) {
    room_taken += RoomOf(c) - c.room;
    c.room = RoomOf(c);
    const Turn& turn = turns.at(c.turn).turn;
    down::StartChunk chunk;
    chunk.tid = c.tid;
    chunk.att = c.att;
    chunk.gid = c.gid;
    chunk.prompt = PromptOf(c);
    chunk.generated = c.ids;
    chunk.chunk_tokens = ChunkOf(c);
    chunk.max_new_tokens = turn.max_new_tokens;
    chunk.sampling = turn.sampling;
    chunk.adapter = turn.adapter;
    session->Send(std::move(chunk));
  }

  void Take(up::ChunkDelta& delta) {
    const auto at = running.find({delta.tid, delta.att});
    if (at == running.end()) return;  // it was cancelled
    Choice& c = at->second;
    Asked& asked = turns.at(c.turn);
    c.ids.insert(c.ids.end(), delta.tokens.ids.begin(), delta.tokens.ids.end());
    {
      const MutexLock lock(mu);
      counts.answer_tokens += delta.tokens.size();
    }
    TurnDelta said{.choice = c.choice, .tokens = std::move(delta.tokens)};
    if (delta.ended) {
      switch (delta.end) {
        case ChunkEnd::kEos:
          said.end = TurnEnd::kEnd;
          break;
        case ChunkEnd::kStop:
          said.end = TurnEnd::kStop;
          break;
        case ChunkEnd::kLength:
          said.end = TurnEnd::kLength;
          break;
        case ChunkEnd::kChunkLimit:
          if (static_cast<int64_t>(c.ids.size()) >= asked.turn.max_new_tokens) said.end = TurnEnd::kLength;
          break;
        default:
          said.end = TurnEnd::kFailed;
          said.why = delta.end == ChunkEnd::kDataError
                         ? InvalidArgument(delta.why)
                         : Internal(delta.why.empty() ? "the worker gave the request up" : delta.why);
      }
    }
    const int64_t turn = c.turn;
    const bool heard_of = (said.tokens.size() == 0 && said.end == TurnEnd::kNone) || Tell(asked, said);
    if (said.end == TurnEnd::kFailed || !heard_of) {
      Count(&GeneratorCounts::failed);
      return Forget(turn);
    }
    if (said.end == TurnEnd::kNone) {
      if (delta.ended) StartChunk(c);
      return;
    }
    Drop(at);
    if (--asked.left > 0) return;
    Count(&GeneratorCounts::finished);
    turns.erase(turn);
  }

  // The choice is over, whatever the worker makes of it.
  std::map<Key, Choice>::iterator Drop(std::map<Key, Choice>::iterator at) {
    session->Drop(at->first.first, at->first.second);
    room_taken -= at->second.room;
    {
      const MutexLock lock(mu);
      --held;
    }
    return running.erase(at);
  }

  void Forget(int64_t turn) {
    for (auto at = running.begin(); at != running.end();)
      at = at->second.turn == turn ? Drop(at) : std::next(at);
    const auto gone = std::erase_if(waiting, [&](const Choice& c) { return c.turn == turn; });
    turns.erase(turn);
    const MutexLock lock(mu);
    held -= static_cast<int64_t>(gone);
  }

  // False: who hears of it threw, and is told nothing more.
  static bool Tell(const Asked& asked, const TurnDelta& said) {
    try {
      asked.sink(said);
      return true;
    } catch (const std::exception& e) {  // the door of this thread: the other turns go on
      std::fprintf(stderr, "an answer could not be written: %s\n", e.what());
      return false;
    }
  }

  void Fail(int64_t turn, const Status& why) {
    (void)Tell(turns.at(turn), {.end = TurnEnd::kFailed, .why = why});
    Count(&GeneratorCounts::failed);
    Forget(turn);
  }
  void FailAll(const Status& why) {
    while (!turns.empty()) Fail(turns.begin()->first, why);
  }
  void EndLate(Clock::time_point now) {
    looked = now;
    std::set<int64_t> late;
    for (const auto& [number, asked] : turns) {
      if (asked.deadline <= now) late.insert(number);
    }
    for (const int64_t number : late)
      Fail(number, DeadlineExceeded("the request was not answered in time; others may have been before it"));
  }

  void Count(int64_t GeneratorCounts::*which) {
    const MutexLock lock(mu);
    ++(counts.*which);
  }
};

Generator::Generator(std::unique_ptr<InferenceSession> session, const GeneratorOptions& options)
    : impl_(std::make_unique<Impl>(std::move(session), options)) {
  impl_->thread = std::jthread([impl = impl_.get()](const std::stop_token& stop) { impl->Run(stop); });
}

Generator::~Generator() { Stop(); }

void Generator::Stop() {
  impl_->thread.request_stop();
  impl_->session->Wake();
  if (impl_->thread.joinable()) impl_->thread.join();  // waits: each of its waits has a deadline
}

StatusOr<int64_t> Generator::Begin(Turn turn, TurnSink sink) {
  Impl& im = *impl_;
  for (const std::vector<int32_t>& prompt : turn.prompts) {
    const int64_t need =
        static_cast<int64_t>(prompt.size()) + std::min(turn.max_new_tokens, im.options.chunk_tokens);
    if (need > im.options.kv_tokens)
      return InvalidArgument("the prompt has " + std::to_string(prompt.size()) +
                             " tokens, and the KV cache of this server holds " +
                             std::to_string(im.options.kv_tokens) +
                             "; start it with a larger --kv-cache-tokens");
  }
  int64_t number = 0;
  {
    const MutexLock lock(im.mu);
    if (!im.closed.ok()) return im.closed;
    const int64_t most = im.options.max_running + im.options.max_waiting;
    if (im.held > 0 && im.held + turn.choices() > most) {
      ++im.counts.refused;
      return ResourceExhausted("this server has " + std::to_string(im.held) + " answers to make and takes " +
                               std::to_string(most) + " at most; try again");
    }
    im.held += turn.choices();
    ++im.counts.turns;
    number = im.next_turn++;
    const int64_t choices = turn.choices();
    im.commands.push_back({number, Impl::Asked{std::move(turn), std::move(sink), choices,
                                               Clock::now() + im.options.turn_timeout}});
  }
  im.session->Wake();
  return number;
}

void Generator::Cancel(int64_t turn) {
  {
    const MutexLock lock(impl_->mu);
    impl_->commands.push_back({turn, std::nullopt});
  }
  impl_->session->Wake();
}

void Generator::Close(const std::string& why) {
  const MutexLock lock(impl_->mu);
  if (impl_->closed.ok()) impl_->closed = Unavailable(why);
}

void Generator::EndAll(const Status& why) {
  {
    const MutexLock lock(impl_->mu);
    impl_->end_all = why;
  }
  impl_->session->Wake();
}

StatusOr<bool> Generator::Serves() const {
  const MutexLock lock(impl_->mu);
  if (!impl_->over.ok()) return impl_->over;
  return impl_->serves;
}

GeneratorCounts Generator::Counts() const {
  const MutexLock lock(impl_->mu);
  return impl_->counts;
}

}  // namespace tidepool::workers
