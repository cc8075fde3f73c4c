#pragma once
// A trajectory: everything that is known of one sample's tokens, from the engine to the trainer.
//
// A group's samples form a tree: its root is the segment of the prompt, and a trajectory is the path from the
// root to one leaf. The parent of a segment is the one before it on the path. Samples of a group share the
// root (`prompt`) in memory. A segment has a kind and typed columns; the kind says which columns it may have
// and whether its tokens carry loss:
//
//   kind          loss   columns
//   kPrompt       no     ids
//   kTokens       yes    ids; if sampled: logprobs, log_kept, versions, routing; of an episode: turn
//   kObservation  no     ids: what an environment said, or text that a supervised row does not teach
//   kFragment     yes    fragment, fragment_steps, versions (in place of tokens; the only one on its path)
//
// An *outline* has the shape of a trajectory and none of its content: kinds, lengths, versions and turns of
// its segments. It is what a rank of a training group is given of rows that another rank computes.
//
// codec.h has the one encoding, for wire and disk, and the digest. To add a column: here, in codec.cc (a bit
// and a line each way), and where it is made and used. Value types; thread-compatible.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/base/turn_mark.h"
#include "core/base/words.h"

namespace tidepool::sample {

enum class SegmentKind : uint8_t { kPrompt = 0, kTokens = 1, kObservation = 2, kFragment = 3 };
constexpr auto WordsOf(SegmentKind) {
  return std::to_array<const char*>({"prompt", "tokens", "observation", "fragment"});
}
// Why the last token is the last one: an end token, a stop string or token, the limit.
enum class Finish : uint8_t { kEos = 0, kStop = 1, kLength = 2 };

// Tokens in a row that one version sampled, and how many; at least one.
using VersionRun = std::pair<Version, int64_t>;
// Adds `tokens` more of `version`, to the last run if that is of the same version.
void AddVersion(std::vector<VersionRun>& runs, const Version& version, int64_t tokens);

// How a turn of the policy begins: TurnMark without its place, which is that of its segment.
struct TurnStart {
  uint64_t state = 0;        // hash of the state that the policy acts in
  double reward_before = 0;  // of all turns before this one
  friend bool operator==(const TurnStart&, const TurnStart&) = default;
};

struct Segment {
  SegmentKind kind = SegmentKind::kTokens;
  std::vector<int32_t> ids;          // [tokens]
  std::vector<float> logprobs;       // [tokens] nats, unmasked, temperature included; or empty: not sampled
  std::vector<float> log_kept;       // [tokens] log of the mass that top-k, top-p, min-p kept; empty: all 0
  std::vector<VersionRun> versions;  // run lengths over the tokens, or over the fragment's steps; or empty
  // Experts of rows that response tokens were drawn from (core/model/routing.h). The rows are counted from
  // the beginning of the response, so the column of a path is that of its segments in a row; it may end
  // early.
  std::string routing;
  std::string fragment;  // core/policy/fragment.h
  int64_t fragment_steps = 0;
  std::optional<TurnStart> turn;
  // Of an outline: the tokens, or steps, whose columns are elsewhere.
  std::optional<int64_t> outlined;
  friend bool operator==(const Segment&, const Segment&) = default;

  // Tokens, or steps of a fragment.
  [[nodiscard]] int64_t size() const {
    if (outlined) return *outlined;
    return kind == SegmentKind::kFragment ? fragment_steps : static_cast<int64_t>(ids.size());
  }
  // Adds tokens of the same kind behind these. A fragment comes whole: it replaces what is here. An outline
  // goes behind another one, or behind nothing.
  void Append(const Segment& more);
  // Its tokens from `from` on.  requires a segment of tokens without routing, 0 <= from <= size()
  [[nodiscard]] Segment Tail(int64_t from) const;
  // kInvalidArgument: columns that this kind does not have, or that differ in length.
  [[nodiscard]] Status CheckShape() const;
  // kInvalidArgument: tokens that no engine can have sampled: an id outside the vocabulary, a log-probability
  // that is positive beyond rounding or not finite, a token without a version.
  [[nodiscard]] Status CheckSampled(int64_t vocab_size) const;
  [[nodiscard]] Segment Outline() const;
};

struct Trajectory {
  SampleId tid;
  int32_t att = -1;
  Finish finish = Finish::kEos;
  std::shared_ptr<const Segment> prompt;  // of the group; null: no prompt
  std::vector<Segment> segments;          // the response: the path behind the prompt

  // By value: two prompts with equal tokens are equal.
  friend bool operator==(const Trajectory& a, const Trajectory& b);

  // Tokens were made: joins them to the last segment if that is of the same kind and has no newer turn.
  void Append(Segment more);

  // --- columns of the whole response, one entry a token (a fragment counts as one)
  [[nodiscard]] int64_t size() const;  // tokens, or steps of a fragment
  [[nodiscard]] std::vector<int32_t> Ids() const;
  [[nodiscard]] std::vector<float> Logprobs() const;  // 0 where nobody sampled; empty: no segment has any
  [[nodiscard]] std::vector<float> LogKept() const;   // empty: all 0
  // What was not sampled counts for the version that spoke before it.
  [[nodiscard]] std::vector<VersionRun> Versions() const;
  [[nodiscard]] std::string Routing() const;
  // 1 on tokens with loss: those of the kinds that carry it, except what versions in `without_loss` sampled
  // (on_stale: mask). A fragment has one entry.
  [[nodiscard]] std::vector<uint8_t> LossMask(std::span<const Version> without_loss = {}) const;
  [[nodiscard]] std::vector<TurnMark> Turns() const;
  // Runs over the tokens with loss alone, in order.
  [[nodiscard]] std::vector<VersionRun> VersionsWithLoss() const;
  // Of each segment of the response: Segment::CheckSampled.
  [[nodiscard]] Status CheckSampled(int64_t vocab_size) const;
  // The fragment, if this is one, else null.
  [[nodiscard]] const Segment* Fragment() const;
  [[nodiscard]] Trajectory Outline() const;
  [[nodiscard]] bool is_outline() const;
  [[nodiscard]] int64_t prompt_size() const { return prompt == nullptr ? 0 : prompt->size(); }
};

// The segments of a supervised answer: `mask` [ids] is 1 on what is taught; empty: all of it.
std::vector<Segment> TaughtSegments(const std::vector<int32_t>& ids, const std::vector<uint8_t>& mask);
std::shared_ptr<const Segment> PromptSegment(std::vector<int32_t> ids);
// Of a prompt and the first `n` ids of a response.  requires n <= response.size()
uint64_t HashOfIds(std::span<const int32_t> prompt, std::span<const int32_t> response, size_t n);

}  // namespace tidepool::sample
