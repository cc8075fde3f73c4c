#include "workers/net/addresses.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <netinet/in.h>

#include <list>
#include <string>

#include "core/base/loopback.h"

namespace tidepool::workers {
namespace {

// The interfaces of a host, as getifaddrs lists them.
class Interfaces {
 public:
  Interfaces& With(unsigned flags, const std::string& address) {
    sockaddr_storage& to = addresses_.emplace_back();
    if (inet_pton(AF_INET, address.c_str(), &reinterpret_cast<sockaddr_in&>(to).sin_addr) == 1) {
      to.ss_family = AF_INET;
    } else {
      EXPECT_EQ(inet_pton(AF_INET6, address.c_str(), &reinterpret_cast<sockaddr_in6&>(to).sin6_addr), 1);
      to.ss_family = AF_INET6;
    }
    ifaddrs& entry = entries_.emplace_back();
    entry.ifa_flags = flags;
    entry.ifa_addr = reinterpret_cast<sockaddr*>(&to);
    if (entries_.size() > 1) std::prev(entries_.end(), 2)->ifa_next = &entry;
    return *this;
  }
  [[nodiscard]] std::string Outside() const {
    return OutsideAddress(entries_.empty() ? nullptr : &entries_.front());
  }

 private:
  std::list<sockaddr_storage> addresses_;
  std::list<ifaddrs> entries_;
};

TEST(OutsideAddressTest, IsTheFirstThatOthersReach) {
  EXPECT_EQ(Interfaces().Outside(), "");
  Interfaces some;
  some.With(IFF_UP | IFF_LOOPBACK, "127.0.0.1").With(0, "10.0.0.1").With(IFF_UP, "fe80::1");
  EXPECT_EQ(some.Outside(), "");
  EXPECT_EQ(some.With(IFF_UP, "fd00::7").With(IFF_UP, "fd00::8").Outside(), "[fd00::7]");
  EXPECT_EQ(some.With(IFF_UP, "10.0.0.7").With(IFF_UP, "10.0.0.8").Outside(), "10.0.0.7");
}

TEST(AddressForOthersTest, ANameThatIsLoopbackHereIsAnotherInterface) {
  EXPECT_EQ(*AddressForOthers("127.0.0.1:1"), "127.0.0.1") << "meant so: the job does not leave the host";
  // 127.0.1.1 by another name, which stands for the host's own in Debian's /etc/hosts.
  const std::string name = "2130706689:1";
  ASSERT_TRUE(IsLoopback(*AddressTowards(name)));
  const auto found = AddressForOthers(name);
  if (found.ok()) {
    EXPECT_FALSE(IsLoopback(*found)) << *found;
  } else {  // this host has no other interface
    EXPECT_EQ(found.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(found.status().message(), testing::HasSubstr("cluster.advertise"));
    EXPECT_THAT(found.status().message(), testing::HasSubstr("/etc/hosts"));
  }
}

}  // namespace
}  // namespace tidepool::workers
