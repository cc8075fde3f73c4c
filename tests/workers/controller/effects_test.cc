#include "workers/controller/effects.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace tidepool::workers {
namespace {

namespace cmd = scheduler::command;

class NoWire : public Attachments::Wire {
 public:
  void Send(ConnectionId, ToWorker) override {}
  void Refuse(ConnectionId, down::Refuse) override {}
  void Close(ConnectionId, const std::string&) override {}
};

TEST(EffectsTest, AMessageIsAnsweredWhenWhatItCausedHasBeenCarriedOut) {
  NoWire wire;
  Attachments attachments({}, &wire);
  std::vector<int> answered;
  Effects effects(attachments,
                  {.append = [](const std::vector<Effects::Decided>& decided) -> std::optional<int64_t> {
                     const bool records = std::ranges::any_of(decided, [](const Effects::Decided& d) {
                       return std::holds_alternative<cmd::Append>(d.command);
                     });
                     return records ? std::optional<int64_t>(1) : std::nullopt;
                   },
                   .carry_out = [](std::vector<Effects::Decided>&) {},
                   .over = [] { return false; },
                   .answered =
                       [&](const std::vector<TimePoint>& read) {
                         for (const TimePoint at : read)
                           answered.push_back(static_cast<int>(Seconds(at.since_start)));
                       }});
  const auto hear = [&](int at, scheduler::Command command) {
    effects.Add(std::move(command), {});
    effects.Answers({FromSeconds(at)});
  };
  EXPECT_EQ(effects.waiting(), 0);
  hear(1, cmd::CancelChunk{});
  hear(2, cmd::CancelChunk{});
  EXPECT_EQ(effects.waiting(), 2);
  effects.Execute();
  EXPECT_EQ(answered, (std::vector{1, 2})) << "nothing is recorded, so nothing is waited for";
  hear(3, cmd::Append{});
  effects.Execute();
  hear(4, cmd::CancelChunk{});
  effects.Execute();
  EXPECT_EQ(answered, (std::vector{1, 2})) << "the record is not durable, and what follows keeps its place";
  effects.Stored(1);
  EXPECT_EQ(answered, (std::vector{1, 2, 3, 4}));
}

}  // namespace
}  // namespace tidepool::workers
