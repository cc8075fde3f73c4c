#include "workers/cli/layout_search.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <tuple>

#include "core/base/words.h"
#include "core/config/layout_rules.h"
#include "core/config/training_slots.h"
#include "core/model/cut.h"
#include "scheduler/cost_model.h"
#include "workers/cli/sim_job.h"
#include "workers/cli/table.h"
#include "workers/controller/scheduler_options.h"
#include "workers/device/memory_plan.h"

namespace tidepool::workers {

using scheduler::SimJob;

namespace {

// A core rehearses some 700 000 events a second: this is two or three seconds.
constexpr int64_t kEvents = 1'500'000;
constexpr size_t kRehearsals = 40;
// Estimates and rehearsals that differ by less say nothing.
constexpr double kAlike = 0.005;

bool SomeTrain(PlacementKind placement) {
  return placement == PlacementKind::kSplit || placement == PlacementKind::kMultiplexed;
}

JobConfig WithLayout(JobConfig c, const Layout& l) {
  c.scheduler.placement = l.placement;
  c.scheduler.policy = l.policy;
  c.scheduler.actor_slots = l.actor_slots;
  c.train.mesh.tp = l.tp;
  c.train.zero = l.zero;
  c.train.micro_batch_tokens = l.micro_batch_tokens;
  return c;
}

// 1, 2, 3, 4, 6, 8, 12 ... and `most`.
std::vector<int64_t> Sizes(int64_t most) {
  std::vector<int64_t> sizes = {1};
  for (int64_t n = 2; n <= most; n *= 2) {
    sizes.push_back(n);
    if (n + n / 2 <= most) sizes.push_back(n + n / 2);
  }
  if (sizes.back() != most) sizes.push_back(most);
  return sizes;
}

// How the slots that train divide a step, and what the cost model says of one of them.
struct TrainingCost {
  double all_s = 0, exchange_s = 0;
};

class Search {
 public:
  Search(const config::LoadedConfig& loaded, const SimJob& job, const LayoutRoom& room)
      : loaded_(loaded),
        job_(job),
        room_(room),
        cost_(job.hardware, job.model, job.devices_per_slot, job.engine_efficiency) {}

  StatusOr<FoundLayouts> Run();

 private:
  struct Candidate {
    Layout layout;
    MemoryPlan memory;
    TrainingCost train;
    double rough_s = 0;  // of a step
    int64_t order = 0;   // as it was tried: simpler ones first
  };
  // Why a candidate's slots have no room for it.
  struct Excess {
    const ProcessMemory* process = nullptr;
    int64_t missing = 0;
  };

  [[nodiscard]] std::vector<int64_t> MicroBatches(const Layout& layout) const;
  [[nodiscard]] TrainingCost CostOf(const Layout& layout) const;
  [[nodiscard]] double RoughStep(const Layout& layout, double train_s) const;
  [[nodiscard]] int64_t RoomOf(const MemoryPlan& plan) const;
  [[nodiscard]] Excess ExcessOf(const MemoryPlan& plan) const;
  [[nodiscard]] TooLarge TooLargeOf(const Layout& layout, const Excess& excess) const;
  // Tries all micro-batches of `layout`, or with `given` its own.
  Status Try(const Layout& layout, bool given);
  void Refuse(const std::string& why);
  [[nodiscard]] std::optional<std::string> WhyRefused(const Layout& layout, const JobConfig& config) const;
  Status RehearseAll();
  StatusOr<bool> RehearseOne(const Candidate& c);
  [[nodiscard]] std::string Bound(const PlannedLayout& p) const;

  const config::LoadedConfig& loaded_;
  const SimJob& job_;
  const LayoutRoom& room_;
  const scheduler::CostModel cost_;
  const Layout given_ = LayoutOf(loaded_.config);
  std::vector<Candidate> candidates_;
  std::map<std::string, size_t> refused_;  // by the words without their numbers
  int64_t events_ = 0;
  FoundLayouts found_;
};

// Of what a micro-batch may have: no row may be cut short by it, and larger than a slot's whole share it
// means nothing. The config's own first, then the others, larger ones first.
std::vector<int64_t> Search::MicroBatches(const Layout& layout) const {
  const JobConfig& c = loaded_.config;
  const int64_t row = c.data.max_prompt_tokens + c.rollout.max_new_tokens;
  const int64_t trains = config::TrainingSlots(WithLayout(c, layout));
  const int64_t share = (c.train.groups_per_step * TrainedPerRow(c) * row * layout.tp + trains - 1) / trains;
  std::vector<int64_t> sizes = {given_.micro_batch_tokens};
  // Where it is what bounds prompts by default, more would let longer ones in.
  if (given_.micro_batch_tokens > row) {
    for (const int64_t times : {4, 2}) {
      if (given_.micro_batch_tokens * times / 2 < share) sizes.push_back(given_.micro_batch_tokens * times);
    }
  }
  for (int64_t n = given_.micro_batch_tokens / 2; n >= row; n /= 2) sizes.push_back(n);
  return sizes;
}

TrainingCost Search::CostOf(const Layout& layout) const {
  const JobConfig& c = loaded_.config;
  const int64_t trains = config::TrainingSlots(WithLayout(c, layout)), data = trains / layout.tp;
  const auto rows = static_cast<double>(SamplesPerRow(c)), prompt = static_cast<double>(job_.prompt_tokens);
  const double answer = job_.lengths.mean_tokens, row = prompt + answer;
  // The slowest of the slots.
  const auto groups = static_cast<double>((c.train.groups_per_step + data - 1) / data);
  const double tokens = groups * (job_.prompt_once ? prompt + rows * answer : rows * row);
  const double squares = groups * rows * row * row;
  const int64_t budget = job_.micro_batch_tokens > 0 ? layout.micro_batch_tokens : 0;
  const scheduler::TrainingLayout division{
      .data = data,
      .tensor = layout.tp,
      .zero = layout.zero,
      .micro_batches = budget > 0 ? static_cast<int64_t>(std::ceil(tokens / static_cast<double>(budget))) : 0,
      .one_host = job_.one_host};
  const double scores = static_cast<double>(job_.further_models) *
                        cost_.Score(tokens, squares, job_.train_efficiency) / static_cast<double>(layout.tp);
  TrainingCost cost;
  cost.exchange_s = cost_.Collectives(division, tokens, job_.recompute);
  cost.all_s = scores + cost_.TrainShare(division, tokens, squares, job_.recompute, job_.train_efficiency) +
               cost.exchange_s;
  return cost;
}

// What a step takes at least, to tell what is worth rehearsing.
double Search::RoughStep(const Layout& layout, double train_s) const {
  const JobConfig& c = loaded_.config;
  const int64_t slots = c.cluster.slots;
  const bool ahead = c.scheduler.max_lag_versions > 0;
  const auto trains = static_cast<double>(config::TrainingSlots(WithLayout(c, layout)));
  const int64_t samples = c.train.groups_per_step * SamplesPerRow(c);
  const auto generation = [&](int64_t engines) {
    const int64_t each = (samples + engines - 1) / engines;
    const int64_t batch = std::clamp<int64_t>(std::min(each, c.rollout.max_concurrent), 1, each);
    const auto tokens = static_cast<int64_t>(std::ceil(job_.lengths.mean_tokens));
    const double kv = static_cast<double>(batch * job_.prompt_tokens);
    return cost_.DecodeSteps(batch, kv, tokens) * static_cast<double>(each) / static_cast<double>(batch);
  };
  const double of_all = generation(slots);
  switch (layout.placement) {
    case PlacementKind::kSplit: {
      const double made = generation(std::max<int64_t>(1, slots - layout.actor_slots));
      return ahead ? std::max(made, train_s) : made + train_s;
    }
    case PlacementKind::kMultiplexed:
      return ahead ? std::max(train_s, of_all + train_s * trains / static_cast<double>(slots))
                   : of_all + train_s;
    case PlacementKind::kColocated:
    case PlacementKind::kElastic:
      break;
  }
  return of_all + train_s;
}

int64_t Search::RoomOf(const MemoryPlan& plan) const {
  if (room_.slot_bytes > 0) return room_.slot_bytes;
  int64_t left = room_.machine_bytes - plan.shared_memory_bytes();
  const int64_t slots = loaded_.config.cluster.slots;
  for (size_t i = static_cast<size_t>(slots); i < plan.processes.size(); ++i)
    left -= plan.processes[i].total();
  return left / slots;
}

Search::Excess Search::ExcessOf(const MemoryPlan& plan) const {
  const int64_t room = RoomOf(plan);
  Excess worst{.process = nullptr, .missing = 0};
  for (size_t i = 0; i < static_cast<size_t>(loaded_.config.cluster.slots); ++i) {
    const ProcessMemory& p = plan.processes[i];
    const int64_t missing = (p.on_gpu ? p.gpu() : p.least()) - room;
    if (missing > worst.missing) worst = {&p, missing};
  }
  return worst;
}

TooLarge Search::TooLargeOf(const Layout& layout, const Excess& excess) const {
  const ProcessMemory& p = *excess.process;
  TooLarge out{.count = 1,
               .part = "process",
               .layout = layout,
               .slot = p.name,
               .parts = p.PartsText(),
               .bytes = p.on_gpu ? p.gpu() : p.least(),
               .missing = excess.missing};
  int64_t most = 0;
  for (const ProcessMemory::Part& part : p.parts()) {
    if (*part.smaller == 0 || part.bytes <= most) continue;
    most = part.bytes;
    out.part = part.name;
  }
  return out;
}

void Search::Refuse(const std::string& why) {
  std::string words;
  for (const char c : why) {
    if (c < '0' || c > '9') words += c;
  }
  const auto [at, fresh] = refused_.emplace(words, found_.refused.size());
  if (fresh) found_.refused.emplace_back(why, 0);
  ++found_.refused[at->second].second;
}

std::optional<std::string> Search::WhyRefused(const Layout& layout, const JobConfig& config) const {
  config::LoadedConfig changed = loaded_;
  changed.config = config;
  const std::vector<std::string> problems = config::LayoutProblems(std::move(changed));
  if (!problems.empty()) return problems.front();
  if (layout.tp > 1) {
    const auto spec = SpecOf(config.model);
    const Status cut = spec.ok() ? model::CheckCut(*spec, layout.tp) : spec.status();
    if (!cut.ok()) return "train.mesh.tp: " + cut.message();
  }
  return std::nullopt;
}

Status Search::Try(const Layout& layout, bool given) {
  const JobConfig config = WithLayout(loaded_.config, layout);
  found_.tried += given ? 0 : 1;  // the config's own is among the others, with other micro-batches
  if (const auto why = WhyRefused(layout, config); why) {
    if (given) {
      found_.given_refused = why;
    } else {
      Refuse(*why);
    }
    return OkStatus();
  }
  std::vector<Candidate> sizes;
  for (const int64_t size : given ? std::vector<int64_t>{layout.micro_batch_tokens} : MicroBatches(layout)) {
    Candidate c{.layout = layout, .memory = {}, .train = {}, .order = found_.tried};
    c.layout.micro_batch_tokens = size;
    c.train = CostOf(c.layout);
    sizes.push_back(std::move(c));
  }
  // The config's own unless another one is faster.
  std::ranges::stable_sort(sizes, [&](const Candidate& a, const Candidate& b) {
    return std::lround(std::log(a.train.all_s) / kAlike) < std::lround(std::log(b.train.all_s) / kAlike);
  });
  std::optional<TooLarge> nearest;
  for (Candidate& c : sizes) {
    TP_ASSIGN_OR_RETURN(c.memory, PlanMemory(WithLayout(loaded_.config, c.layout)));
    const Excess excess = ExcessOf(c.memory);
    if (excess.process == nullptr) {
      c.rough_s = RoughStep(c.layout, c.train.all_s);
      candidates_.push_back(std::move(c));
      return OkStatus();
    }
    if (!nearest || excess.missing < nearest->missing) nearest = TooLargeOf(c.layout, excess);
  }
  if (given) {
    found_.given_too_large = nearest;
    return OkStatus();
  }
  const auto same = std::ranges::find(found_.too_large, nearest->part, &TooLarge::part);
  if (same == found_.too_large.end()) {
    found_.too_large.push_back(*nearest);
  } else {
    const int64_t count = same->count + 1;
    if (nearest->missing < same->missing) *same = *nearest;
    same->count = count;
  }
  return OkStatus();
}

StatusOr<FoundLayouts> Search::Run() {
  const JobConfig& c = loaded_.config;
  const int64_t slots = c.cluster.slots;
  TP_RETURN_IF_ERROR(Try(given_, /*given=*/true));
  for (const PlacementKind placement : AllOf<PlacementKind>()) {
    for (const int64_t actors :
         SomeTrain(placement) ? Sizes(std::max<int64_t>(1, slots - 1)) : std::vector<int64_t>{1}) {
      Layout layout = given_;
      layout.placement = placement;
      if (placement != given_.placement) layout.policy.clear();  // one of another placement
      if (placement != PlacementKind::kColocated) layout.actor_slots = actors;
      const int64_t trains = config::TrainingSlots(WithLayout(c, layout));
      for (int64_t tp = 1; tp <= trains; ++tp) {
        if (trains % tp != 0) continue;
        for (int64_t zero = 0; zero <= (trains > tp ? 3 : 0); ++zero) {  // one share shares nothing
          layout.tp = tp;
          layout.zero = zero;
          layout.micro_batch_tokens = given_.micro_batch_tokens;
          TP_RETURN_IF_ERROR(Try(layout, /*given=*/false));
        }
      }
    }
  }
  std::ranges::stable_sort(found_.too_large, {}, &TooLarge::missing);
  std::ranges::stable_sort(found_.refused, std::greater(), &std::pair<std::string, int64_t>::second);
  TP_RETURN_IF_ERROR(RehearseAll());
  return std::move(found_);
}

// One of each placement and number of training slots, the most promising first, then a second of each.
Status Search::RehearseAll() {
  std::ranges::stable_sort(candidates_, {}, [&](const Candidate& c) {
    return std::tuple(!(c.layout == given_), std::lround(std::log(c.rough_s) / kAlike), c.order);
  });
  std::map<std::pair<PlacementKind, int64_t>, int64_t> of_kind;
  std::vector<std::pair<int64_t, const Candidate*>> turns;
  std::vector<Layout> seen;
  for (const Candidate& c : candidates_) {
    if (std::ranges::find(seen, c.layout) != seen.end()) continue;  // the given one is tried twice
    seen.push_back(c.layout);
    const bool given = c.layout == given_;
    turns.emplace_back(given ? -1 : of_kind[{c.layout.placement, c.layout.actor_slots}]++, &c);
  }
  std::ranges::stable_sort(turns, {}, &std::pair<int64_t, const Candidate*>::first);
  size_t rehearsed = 0;
  for (const auto& [turn, candidate] : turns) {
    if (rehearsed >= kRehearsals || events_ > kEvents) {
      ++found_.not_rehearsed;
      continue;
    }
    TP_ASSIGN_OR_RETURN(const bool ran, RehearseOne(*candidate));
    rehearsed += ran ? 1 : 0;
  }
  std::ranges::stable_sort(found_.layouts, {}, [](const PlannedLayout& p) { return p.report.step_s; });
  return OkStatus();
}

StatusOr<bool> Search::RehearseOne(const Candidate& c) {
  const JobConfig config = WithLayout(loaded_.config, c.layout);
  const scheduler::ControllerOptions options = SchedulerOptions(config, /*held_out=*/0);
  SimJob s = job_;
  s.controller.fleet = options.fleet;
  s.controller.batch.early_columns = options.batch.early_columns;
  s.zero = c.layout.zero;
  // A checkpoint goes through the host's memory: weights, moments and what the optimizer adds up in.
  if (s.hardware.host_bytes_per_s > 0)
    s.faults.checkpoint_s = 0.01 + 16 * s.model.parameters / s.hardware.host_bytes_per_s;
  if (s.micro_batch_tokens > 0) s.micro_batch_tokens = c.layout.micro_batch_tokens;
  if (s.controller.rollout.kv_cache_tokens == 0)
    s.controller.rollout.kv_cache_tokens = c.memory.kv_cache_tokens;
  // Enough for versions to follow each other as they do later, however short the job is.
  const int64_t samples = config.train.groups_per_step * SamplesPerRow(config);
  s.controller.steps = config.scheduler.max_lag_versions + std::clamp<int64_t>(20'000 / samples, 4, 12);
  auto report = Rehearse(s);
  if (!report.ok()) {
    if (report.status().code() == StatusCode::kInternal) return report.status();
    Refuse(report.status().message());
    if (c.layout == given_) found_.given_refused = report.status().message();
    return false;
  }
  events_ += report->events;
  PlannedLayout p{.layout = c.layout,
                  .given = c.layout == given_,
                  .train_s = c.train.all_s,
                  .exchange_s = c.train.exchange_s,
                  .report = std::move(*report)};
  const int64_t room = RoomOf(c.memory);
  for (int64_t slot = 0; slot < config.cluster.slots; ++slot) {
    const ProcessMemory& m = c.memory.processes[static_cast<size_t>(slot)];
    const int64_t bytes = m.on_gpu ? m.gpu() : m.total() <= room ? m.total() : m.least();
    int64_t& most = MayTrain(config, slot) ? p.train_bytes : p.other_bytes;
    most = std::max(most, bytes);
  }
  p.tokens_per_s = p.report.tokens / static_cast<double>(std::max<int64_t>(p.report.steps, 1)) /
                   std::max(p.report.step_s, 1e-9);
  p.bound = Bound(p);
  found_.layouts.push_back(std::move(p));
  return true;
}

std::string Search::Bound(const PlannedLayout& p) const {
  const scheduler::SimReport& r = p.report;
  const auto of_step = [&](double s) {
    return Formatted("%.3g", s) + " s of " + Formatted("%.3g", r.step_s) + " s";
  };
  std::string train = of_step(p.train_s);
  if (p.exchange_s > 0)
    train += ", " + Formatted("%.0f", 100 * p.exchange_s / p.train_s) + " % of it exchange between slots";
  if (p.train_s > 0.5 * r.step_s) return "training: " + train;
  if (r.tail_s > 0.4 * r.step_s) return "the longest samples of a step: " + of_step(r.tail_s);
  return (r.idle_rollout < 0.2 ? "generation; training is "
                               : "no one part: slots wait for each other; training is ") +
         train;
}

}  // namespace

Layout LayoutOf(const JobConfig& c) {
  return {.placement = c.scheduler.placement,
          .policy = c.scheduler.policy,
          .actor_slots = c.scheduler.actor_slots,
          .tp = c.train.mesh.tp,
          .zero = c.train.zero,
          .micro_batch_tokens = c.train.micro_batch_tokens};
}

std::string LayoutText(const Layout& l, int64_t slots) {
  std::string text = Name(l.placement);
  if (SomeTrain(l.placement))
    text += ", " + std::to_string(l.actor_slots) + " of " + std::to_string(slots) + " slots train";
  if (l.tp > 1) text += ", tp " + std::to_string(l.tp);
  if (l.zero > 0) text += ", zero " + std::to_string(l.zero);
  return text + ", micro-batches of " + std::to_string(l.micro_batch_tokens) + " tokens";
}

std::vector<std::pair<std::string, std::string>> LayoutKeys(const JobConfig& config, const Layout& layout) {
  const Layout was = LayoutOf(config);
  std::vector<std::pair<std::string, std::string>> keys;
  if (layout.placement != was.placement) keys.emplace_back("scheduler.placement", Name(layout.placement));
  if (layout.policy != was.policy) keys.emplace_back("scheduler.policy", "null");
  if (layout.actor_slots != was.actor_slots)
    keys.emplace_back("scheduler.actor_slots", std::to_string(layout.actor_slots));
  if (layout.tp != was.tp) keys.emplace_back("train.mesh.tp", std::to_string(layout.tp));
  if (layout.zero != was.zero) keys.emplace_back("train.zero", std::to_string(layout.zero));
  if (layout.micro_batch_tokens != was.micro_batch_tokens)
    keys.emplace_back("train.micro_batch_tokens", std::to_string(layout.micro_batch_tokens));
  return keys;
}

StatusOr<FoundLayouts> SearchLayouts(const config::LoadedConfig& loaded, const scheduler::SimJob& job,
                                     const LayoutRoom& room) {
  return Search(loaded, job, room).Run();
}

}  // namespace tidepool::workers
