// Bytes of the host and of a device that the host may not touch are moved alike.
#include "core/device/byte_store.h"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "tests/core/device/checked_device.h"

namespace tidepool::device {
namespace {

constexpr size_t kSize = (size_t{9} << 20) + 5;  // several pieces, the last no whole word

std::vector<std::byte> Some() {
  std::vector<std::byte> bytes(kSize);
  for (size_t i = 0; i < kSize; ++i) bytes[i] = static_cast<std::byte>(i * 2654435761U >> 13);
  return bytes;
}
std::vector<std::byte> All(const ByteSource& source) {
  std::vector<std::byte> all;
  const Status taken = source.Each([&](std::span<const std::byte> piece) {
    EXPECT_EQ(all.size() % 8, 0U);
    all.insert(all.end(), piece.begin(), piece.end());
    return OkStatus();
  });
  EXPECT_EQ(taken, OkStatus());
  return all;
}

TEST(ByteStoreTest, IsReadAndWrittenWhereverTheBytesAre) {
  const std::vector<std::byte> some = Some();
  CheckedDevice checked;
  CpuDevice cpu;
  std::vector<std::byte> of_host(kSize);
  const auto of_checked = *checked.Allocate(kSize), of_cpu = *cpu.Allocate(kSize);
  for (const ByteStore& store : {ByteStore(of_host), ByteStore(checked, of_checked->data(), kSize),
                                 ByteStore(cpu, of_cpu->data(), kSize)}) {
    size_t at = 0;
    EXPECT_EQ(store.Fill([&](std::span<std::byte> piece) {
      std::copy_n(some.begin() + static_cast<ptrdiff_t>(at), piece.size(), piece.begin());
      at += piece.size();
      return OkStatus();
    }),
              OkStatus());
    EXPECT_TRUE(All(store) == some);
    const std::vector<std::byte> put(100, std::byte{7});
    store.CopyFrom(kSize - 100, put);
    std::vector<std::byte> got(101);
    store.CopyTo(kSize - 101, got);
    EXPECT_EQ(got[0], some[kSize - 101]);
    EXPECT_TRUE(std::equal(put.begin(), put.end(), got.begin() + 1));
  }
}

TEST(ByteStoreTest, TheFirstErrorEndsIt) {
  CheckedDevice device;
  const auto memory = *device.Allocate(kSize);
  const ByteStore store(device, memory->data(), kSize);
  int pieces = 0;
  const auto second_fails = [&](auto) { return ++pieces < 2 ? OkStatus() : Unavailable("the disk"); };
  EXPECT_EQ(store.Each(second_fails), Unavailable("the disk"));
  EXPECT_EQ(pieces, 2);
  pieces = 0;
  EXPECT_EQ(store.Fill(second_fails), Unavailable("the disk"));
  EXPECT_EQ(pieces, 2);
}

// A checkpoint and newcomers read a state while the device's own thread gives back other memory.
TEST(ByteStoreTest, SeveralThreadsReadWhileOtherMemoryIsFreed) {
  const std::vector<std::byte> some = Some();
  CheckedDevice device;
  const auto memory = device.Put(std::span<const std::byte>(some));
  const ByteSource source(device, memory->data(), kSize);
  std::vector<std::jthread> readers;
  for (int i = 0; i < 2; ++i) readers.emplace_back([&] { EXPECT_TRUE(All(source) == some); });
  for (int i = 0; i < 100; ++i) (void)*device.Allocate(64);
}

TEST(ByteStoreDeathTest, WhatIsNotThereCannotBeCopied) {
  std::vector<std::byte> ten(10), five(5);
  EXPECT_DEATH(ByteSource(ten).CopyTo(6, five), "5 bytes from 6 on of 10");
}

}  // namespace
}  // namespace tidepool::device
