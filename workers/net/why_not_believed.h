#pragma once

#include <chrono>
#include <string>

#include "workers/net/certificates.h"

namespace tidepool::workers {

struct NotBelieved {
  std::string why;           // "": nobody answers within the patience, or nothing is wrong
  bool another_run = false;  // whoever listens there is of another run: waiting is of little use
};

// Why whoever listens there and we do not come together, as far as certificates say: that it shows one of
// another run, or one that does not hold now, or does not take ours; or else that ours, if it is of files,
// does not hold. patience: of each read and write. For a message alone: it trusts nothing and shows no token.
// Thread-safe.
NotBelieved WhyNotBelieved(const std::string& address, const Identity& identity,
                           std::chrono::milliseconds patience);

}  // namespace tidepool::workers
