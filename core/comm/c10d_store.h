#pragma once
// A rendezvous as what c10d's groups meet by. Each wait has a deadline: the store's time-out, or the one that
// is named. For gloo_group.cc and the CUDA module (nccl_sum.cc).

#include <memory>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "core/comm/rendezvous.h"

namespace tidepool::comm {

class C10dStore final : public c10d::Store {
 public:
  // prefix: of all its keys, so that several groups of the same ranks share a rendezvous.
  C10dStore(std::shared_ptr<Rendezvous> rendezvous, std::string prefix, std::chrono::milliseconds timeout)
      : Store(timeout), rendezvous_(std::move(rendezvous)), prefix_(std::move(prefix)) {}

  c10::intrusive_ptr<Store> clone() override {
    return c10::make_intrusive<C10dStore>(rendezvous_, prefix_, timeout_);
  }
  using Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    Check(rendezvous_->Set(prefix_ + key, {value.begin(), value.end()}));
  }
  std::vector<uint8_t> get(const std::string& key) override {
    const auto found = rendezvous_->Get({prefix_ + key}, timeout_);
    Check(found.status());
    return {found->front().begin(), found->front().end()};
  }
  int64_t add(const std::string& key, int64_t n) override {
    const auto sum = rendezvous_->Add(prefix_ + key, n);
    Check(sum.status());
    return *sum;
  }
  bool check(const std::vector<std::string>& keys) override {
    const auto found = rendezvous_->Get(Prefixed(keys), std::chrono::milliseconds(0));
    if (found.status().code() == StatusCode::kDeadlineExceeded) return false;
    Check(found.status());
    return true;
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    Check(rendezvous_->Get(Prefixed(keys), timeout).status());
  }
  // Neither Gloo nor NCCL ask for these; a table ends with its group.
  bool deleteKey(const std::string& /*key*/) override { return false; }
  int64_t getNumKeys() override { throw std::runtime_error("rendezvous: keys are not counted"); }

 private:
  // c10d knows of errors by what is thrown; who made the group catches it.
  static void Check(const Status& status) {
    if (!status.ok()) throw std::runtime_error(status.message());
  }
  [[nodiscard]] std::vector<std::string> Prefixed(const std::vector<std::string>& keys) const {
    std::vector<std::string> all;
    for (const std::string& key : keys) all.push_back(prefix_ + key);
    return all;
  }

  const std::shared_ptr<Rendezvous> rendezvous_;
  const std::string prefix_;
};

}  // namespace tidepool::comm
