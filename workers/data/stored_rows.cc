#include "workers/data/stored_rows.h"

namespace tidepool::workers {

StatusOr<StoredRows::Found> StoredRows::Read(const Enqs& which, const Ask& ask,
                                             const std::function<bool()>& go_on) {
  Found found;
  Enqs elsewhere;
  std::vector<size_t> at;  // in found.rows, of each that is elsewhere
  for (const record::Enq* enq : which) {
    if (!go_on()) return Aborted("the read of rows was called off");
    found.bytes += enq->payload_bytes;
    found.rows.push_back(files_.Read(*enq));
    if (found.rows.back().ok()) continue;
    // It is not here, or this host does not see yet what another one wrote, or the disk is at fault.
    at.push_back(found.rows.size() - 1);
    elsewhere.push_back(enq);
  }
  if (elsewhere.empty()) return found;
  TP_ASSIGN_OR_RETURN(const PayloadsRead read, ask(elsewhere));
  for (size_t i = 0; i < at.size(); ++i) {
    const record::Enq& enq = *elsewhere[i];
    StatusOr<sample::Trajectory>& row = found.rows[at[i]];
    row = read[i].ok()
              ? storage::DecodePayload(*read[i], enq, files_.Where(enq.payload_file, enq.payload_offset))
              : StatusOr<sample::Trajectory>(read[i].status());
  }
  return found;
}

}  // namespace tidepool::workers
