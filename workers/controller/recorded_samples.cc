#include "workers/controller/recorded_samples.h"

#include <utility>

namespace tidepool::workers {

void RecordedSamples::Read(const std::vector<SampleId>& tids, Then then) {
  Trajectories out;
  std::vector<record::Enq> stored;
  std::vector<size_t> at;  // in `out`, of each that is stored
  for (const SampleId& tid : tids) {
    const record::Enq* enq = ends_.find(tid);
    if (enq == nullptr || enq->payload_file < 0) {
      out.push_back(ends_.in_memory(tid));
      continue;
    }
    at.push_back(out.size());
    out.emplace_back(NotFound("not read"));
    stored.push_back(*enq);
  }
  if (stored.empty()) return then(std::move(out));
  Read(std::move(stored),
       [out = std::move(out), at = std::move(at), then = std::move(then)](Trajectories read) mutable {
         for (size_t i = 0; i < at.size(); ++i) out[at[i]] = std::move(read[i]);
         then(std::move(out));
       });
}

void RecordedSamples::Begin() {
  if (wanted_.empty()) return;
  disk_.Do("read of payload/", [wanted = std::exchange(wanted_, {}), reader = reader_,
                                post = ends_.post](const DiskThread::Say&) mutable {
    std::vector<Trajectories> read;
    for (const Wanted& w : wanted) {
      Trajectories& of = read.emplace_back();
      for (const record::Enq& enq : w.what) of.push_back(reader->Read(enq));
    }
    post([wanted = std::move(wanted), read = std::move(read)]() mutable {
      for (size_t i = 0; i < wanted.size(); ++i) wanted[i].then(std::move(read[i]));
    });
  });
}

}  // namespace tidepool::workers
