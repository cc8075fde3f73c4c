#include "scheduler/reply_window.h"

#include <algorithm>
#include <utility>

namespace tidepool::scheduler {

ReplyWindow::Verdict ReplyWindow::Begin(const std::string& client, Incarnation inc, uint64_t request,
                                        const std::string** reply) {
  Client& c = clients_[client];
  if (inc < c.inc) return Verdict::kFenced;
  if (c.inc < inc) c = Client{.inc = inc, .forgotten = 0, .replies = {}};
  const auto it = c.replies.find(request);
  if (it != c.replies.end()) {
    if (!it->second.done) return Verdict::kRunning;
    if (reply != nullptr) *reply = &it->second.bytes;
    return Verdict::kRepeat;
  }
  if (request <= c.forgotten) return Verdict::kForgotten;
  c.replies[request];
  // Only answered requests are forgotten, oldest first: a running one still owes its reply.
  while (static_cast<int64_t>(c.replies.size()) > capacity_ && c.replies.begin()->second.done) {
    c.forgotten = std::max(c.forgotten, c.replies.begin()->first);
    c.replies.erase(c.replies.begin());
  }
  return Verdict::kExecute;
}

void ReplyWindow::Finish(const std::string& client, Incarnation inc, uint64_t request, std::string reply) {
  const auto c = clients_.find(client);
  if (c == clients_.end() || c->second.inc != inc) return;
  const auto it = c->second.replies.find(request);
  if (it == c->second.replies.end()) return;
  it->second.done = true;
  it->second.bytes = std::move(reply);
}

}  // namespace tidepool::scheduler
