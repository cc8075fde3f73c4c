// What a step needs of its rows beside the loss: log-probs of further models and of the weights that it
// starts from, values. Computed in the step, or before it (Trainer::Preview).

#include <algorithm>
#include <utility>

#include "core/model/routing.h"
#include "core/train/packing.h"
#include "core/train/trainer_impl.h"

namespace tidepool::train {
namespace {

const char* NameOf(Column column) {
  switch (column) {
    case Column::kReference:
      return "reference";
    case Column::kTeacher:
      return "teacher";
    case Column::kValues:
      return "values";
    case Column::kOld:
      return "log_probs";
    case Column::kSquares:
      return "squares";
  }
  return "";
}

char BitOf(Column column) { return static_cast<char>(1 << static_cast<int>(column)); }

bool SampledBy(const Row& row, const Version& version) {
  return !row.versions.empty() &&
         std::ranges::all_of(row.versions, [&](const Version& v) { return v == version; });
}

}  // namespace

int StepContext::EarlyRank(size_t row, Column column) const {
  for (size_t rank = 0; rank < early.size(); ++rank) {
    if ((early[rank][row] & BitOf(column)) != 0) return static_cast<int>(rank);
  }
  return -1;
}

// With a single update they are those of its own forward, unless the algorithm asks something of the whole
// batch first.
bool TrainerImpl::NeedsOld(size_t minibatches) const {
  return options.loss.needs_old_first() || options.epochs * static_cast<int64_t>(minibatches) > 1;
}

std::vector<Column> TrainerImpl::NeededColumns(size_t minibatches) const {
  std::vector<Column> needed;
  if (!rl()) return needed;
  if (NeedsOld(minibatches)) needed.push_back(Column::kOld);
  if (reference != nullptr) needed.push_back(Column::kReference);
  if (teacher != nullptr) needed.push_back(Column::kTeacher);
  if (value != nullptr) needed.push_back(Column::kValues);
  return needed;
}

StatusOr<std::vector<std::vector<float>>> TrainerImpl::Compute(Column column, std::span<const Row> rows,
                                                               std::span<const int64_t> places,
                                                               std::vector<std::vector<float>>* squares,
                                                               const ScoringProgress& progress) const {
  switch (column) {
    case Column::kReference:
      return ScoreRows(*reference, *companions.reference, scoring(/*replay=*/false), rows, places,
                       {.progress = progress});
    case Column::kTeacher:
      return ScoreRows(*teacher, *companions.teacher, scoring(/*replay=*/false), rows, places,
                       {.progress = progress});
    case Column::kValues:
      return value->Values(rows, places, progress);
    case Column::kOld:
    case Column::kSquares:  // come with them
      break;
  }
  // These sampled, so tokens go through the experts that were recorded.
  return ScoreRows(*decoder, weights, scoring(/*replay=*/true), rows, places,
                   {.squares = squares, .progress = progress});
}

StatusOr<std::vector<double>> TrainerImpl::WholeColumn(StepContext& step, Column column,
                                                       std::span<const uint8_t> skip,
                                                       std::vector<double>* squares) const {
  const std::vector<Row>& batch = step.batch.rows;
  std::vector<int64_t> left, here;  // of this rank: to be computed, computed early
  for (size_t i = 0; i < batch.size(); ++i) {
    if (!skip.empty() && skip[i] != 0) continue;
    const int rank = step.EarlyRank(i, column);
    if (rank < 0 && !step.late.empty()) step.late[i] = 1;
    if (rank < 0 && !batch[i].elsewhere) left.push_back(static_cast<int64_t>(i));
    if (rank == step.rank()) here.push_back(static_cast<int64_t>(i));
  }
  std::vector<std::vector<float>> square_rows;
  TP_ASSIGN_OR_RETURN(
      auto rows, Compute(column, batch, left, squares == nullptr ? nullptr : &square_rows, step.Progress()));
  const auto take = [&](Column which, std::vector<std::vector<float>>& to) {
    for (const int64_t i : here)
      to[static_cast<size_t>(i)] = *early.Find(batch[static_cast<size_t>(i)], which);
  };
  take(column, rows);
  for (const int64_t i : left) {
    const Row& row = batch[static_cast<size_t>(i)];
    const auto n = static_cast<double>(row.prompt_tokens() + row.response_tokens());
    step.scored.tokens += column == Column::kOld ? 0 : n;
    step.scored.squares += column == Column::kOld ? 0 : n * n;
  }
  if (squares != nullptr) {
    take(Column::kSquares, square_rows);
    TP_ASSIGN_OR_RETURN(*squares, Gather(step, square_rows, NameOf(Column::kSquares)));
  }
  return Gather(step, rows, NameOf(column));
}

Status TrainerImpl::FindEarly(StepContext& step) const {
  if (NeededColumns(step.minibatches.size()).empty()) return OkStatus();
  // Ranks that came with different settings ask each other all the same: else one would wait for the others.
  if (options.early_rows == 0 && step.group() == nullptr) return OkStatus();
  step.late.assign(step.batch.rows.size(), 0);
  const bool with_squares = options.loss.advantage->Uses(algorithms::Provision::kSquares);
  std::string mine;
  for (const Row& row : step.batch.rows) {
    char has = 0;
    for (const Column c : NeededColumns(step.minibatches.size())) {
      const bool whole = c != Column::kOld || !with_squares || early.Find(row, Column::kSquares) != nullptr;
      if (whole && early.Find(row, c) != nullptr) has = static_cast<char>(has | BitOf(c));
    }
    mine.push_back(has);
  }
  if (step.group() == nullptr) {
    step.early = {std::move(mine)};
    return OkStatus();
  }
  TP_ASSIGN_OR_RETURN(step.early, step.group()->AllGather(mine, "early_columns"));
  for (const std::string& columns : step.early) {
    if (columns.size() != step.batch.rows.size())
      return Internal("trainer: a rank lists " + std::to_string(columns.size()) + " rows of a batch of " +
                      std::to_string(step.batch.rows.size()));
  }
  return OkStatus();
}

// Where a row has the same bits in every batch, the forward would say again what the sampler recorded under
// these weights; so it is left out, and the first update's own forward shows whether that is so
// (training/rollout_logp_diff).
Status TrainerImpl::FillOld(StepContext& step, StepPlan& plan, bool squares) const {
  if (!squares && options.clean_records && options.device->batch_invariant(weights.dtype()))
    plan.recorded = SampledByTrained(step.batch, plan.cells);
  // All ranks know the versions of the whole batch, so all leave it out or none does.
  if (plan.recorded.empty() || std::ranges::count(plan.recorded, 0) > 0) {
    TP_ASSIGN_OR_RETURN(plan.old,
                        WholeColumn(step, Column::kOld, plan.recorded, squares ? &plan.squares : nullptr));
  } else {
    plan.old.resize(plan.behave.size());
  }
  for (size_t row = 0; row < plan.recorded.size(); ++row) {
    if (plan.recorded[row] == 0) continue;
    std::copy(plan.behave.begin() + plan.cells.begin[row], plan.behave.begin() + plan.cells.begin[row + 1],
              plan.old.begin() + plan.cells.begin[row]);
  }
  return OkStatus();
}

Status TrainerImpl::Preview(std::vector<Row> rows, const Version& version) {
  previewed = {};
  if (options.early_rows == 0) return OkStatus();
  TP_RETURN_IF_ERROR(Check(rows, /*recorded=*/rl()));
  const bool recorded = options.clean_records && options.device->batch_invariant(weights.dtype()) &&
                        !options.loss.advantage->Uses(algorithms::Provision::kSquares);
  Previewed next;
  for (const Column column : NeededColumns(static_cast<size_t>(options.minibatches))) {
    std::vector<int64_t> places;
    for (size_t i = 0; i < rows.size(); ++i) {
      const bool said = column == Column::kOld && recorded && SampledBy(rows[i], version);  // by the sampler
      if (!said && early.Find(rows[i], column) == nullptr) places.push_back(static_cast<int64_t>(i));
    }
    const int64_t routing = column == Column::kOld ? model::RoutingBytes(weights.spec()) : 0;
    TP_ASSIGN_OR_RETURN(auto micros, MicroBatches(rows, places, options.micro_batch_tokens, routing));
    for (std::vector<int64_t>& micro : micros) next.parts.push_back({column, std::move(micro)});
  }
  next.rows = std::move(rows);
  previewed = std::move(next);
  return OkStatus();
}

StatusOr<Scored> TrainerImpl::PreviewPiece() {
  const Previewed::Part part = std::move(previewed.parts.front());
  previewed.parts.pop_front();
  const bool squares =
      part.column == Column::kOld && options.loss.advantage->Uses(algorithms::Provision::kSquares);
  std::vector<std::vector<float>> square_rows;
  TP_ASSIGN_OR_RETURN(auto rows, Compute(part.column, previewed.rows, part.places,
                                         squares ? &square_rows : nullptr, nullptr));
  Scored scored;
  for (const int64_t place : part.places) {
    const auto i = static_cast<size_t>(place);
    const Row& row = previewed.rows[i];
    early.Put(row, part.column, std::move(rows[i]));
    if (squares) early.Put(row, Column::kSquares, std::move(square_rows[i]));
    const auto n = static_cast<double>(row.prompt_tokens() + row.response_tokens());
    scored.tokens += part.column == Column::kOld ? 0 : n;
    scored.squares += part.column == Column::kOld ? 0 : n * n;
  }
  if (previewed.parts.empty()) previewed = {};
  return scored;
}

// The step is over: its rows are not trained again.
void TrainerImpl::EarlyMetrics(const StepContext& step, std::map<std::string, double>& metrics) {
  if (step.late.empty() || options.early_rows == 0) return;
  const auto late = static_cast<double>(std::ranges::count(step.late, uint8_t{1}));
  metrics["data_plane/columns_early"] = 1 - late / static_cast<double>(step.late.size());
  early.Forget(step.batch.rows);
  const auto trained = [&](const Row& row) {
    return std::ranges::any_of(step.batch.rows, [&](const Row& r) { return r.tid == row.tid; });
  };
  if (!previewed.rows.empty() && trained(previewed.rows.front())) previewed = {};
}

}  // namespace tidepool::train
