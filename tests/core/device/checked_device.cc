#include "tests/core/device/checked_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace tidepool::device {

class CheckedDevice::Mapped : public Buffer {
 public:
  Mapped(std::byte* host, std::byte* kernels, int64_t before, int64_t bytes, int64_t pages,
         std::shared_ptr<Live> live)
      : Buffer(host + before, bytes), host_(host), kernels_(kernels), pages_(pages), live_(std::move(live)) {
    const std::lock_guard lock(live_->mu);
    live_->by_address[host + before] = {bytes, kernels + before};
  }
  ~Mapped() override {
    {
      const std::lock_guard lock(live_->mu);
      live_->by_address.erase(static_cast<std::byte*>(data()));
    }
    ::munmap(host_, static_cast<size_t>(pages_));
    ::munmap(kernels_, static_cast<size_t>(pages_ + ::sysconf(_SC_PAGESIZE)));
  }

 private:
  std::byte* host_;
  std::byte* kernels_;
  int64_t pages_;  // bytes that are mapped
  std::shared_ptr<Live> live_;
};

StatusOr<std::shared_ptr<Buffer>> CheckedDevice::Allocate(int64_t bytes) {
  const int64_t page = ::sysconf(_SC_PAGESIZE), size = (std::max<int64_t>(bytes, 1) + 63) / 64 * 64,
                pages = (size + page - 1) / page * page;
  const int file = ::memfd_create("tidepool-checked-device", MFD_CLOEXEC);
  TP_CHECK(file >= 0 && ::ftruncate(file, pages) == 0) << "memory of " << pages << " bytes";
  const auto whole = static_cast<size_t>(pages + page);  // the last page is nobody's
  void* host = ::mmap(nullptr, static_cast<size_t>(pages), PROT_NONE, MAP_SHARED, file, 0);
  void* kernels = ::mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  TP_CHECK(host != MAP_FAILED && kernels != MAP_FAILED &&
           ::mmap(kernels, static_cast<size_t>(pages), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file,
                  0) == kernels)
      << "mapping of " << pages << " bytes";
  ::close(file);
  return std::shared_ptr<Buffer>(std::make_shared<Mapped>(
      static_cast<std::byte*>(host), static_cast<std::byte*>(kernels), pages - size, bytes, pages, live_));
}

int64_t CheckedDevice::held_bytes() const {
  const std::lock_guard lock(live_->mu);
  int64_t sum = 0;
  for (const auto& [address, of] : live_->by_address) sum += of.first;
  return sum;
}

std::byte* CheckedDevice::Find(const void* p, int64_t bytes, const char* kernel, int field) const {
  const auto* address = static_cast<const std::byte*>(p);
  const std::lock_guard lock(live_->mu);
  auto it = live_->by_address.upper_bound(address);
  TP_CHECK(it != live_->by_address.begin())
      << kernel << ": array " << field << " is no memory of this device";
  --it;
  const auto& [start, of] = *it;
  TP_CHECK(address + bytes <= start + of.first)
      << kernel << ": array " << field << " of " << bytes << " bytes at " << address - start
      << " is not inside an allocation of " << of.first;
  return of.second + (address - start);
}

void CheckedDevice::Upload(void* to, const void* from_host, int64_t bytes) {
  if (bytes > 0) cpu_.Upload(Alias(to, bytes, "Upload"), from_host, bytes);
}
void CheckedDevice::Download(void* to_host, const void* from, int64_t bytes) {
  if (bytes > 0) cpu_.Download(to_host, Alias(from, bytes, "Download"), bytes);
}
void CheckedDevice::Copy(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) cpu_.Copy(Alias(to, bytes, "Copy"), Alias(from, bytes, "Copy"), bytes);
}
void CheckedDevice::Zero(void* to, int64_t bytes) {
  if (bytes > 0) cpu_.Zero(Alias(to, bytes, "Zero"), bytes);
}

}  // namespace tidepool::device
