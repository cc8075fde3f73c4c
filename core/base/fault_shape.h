#pragma once
// What goes wrong in a rehearsal, and how often: read from a workload (core/config/workload.h), dealt by the
// simulator (scheduler/simulator/faults.h).

namespace tidepool {

// ..._mean_s: mean of exponential gaps in virtual seconds, 0: never. Chances are per message or operation.
struct FaultShape {
  // net
  double delay_spread =
      0;  // of a message's delay: between 1 - spread and 1 + spread times the job's; at most 1
  double loss = 0, resend_s = 0.2;  // a lost message is sent again so much later
  double duplicate = 0;             // it arrives twice; of tokens the reply window lets one through
  double partition_mean_s = 0,
         partition_s = 10;  // one way: nothing that one worker says arrives for so long; then all of it does
  // workers
  double kill_mean_s = 0;  // some worker process dies
  double hang_mean_s = 0;  // some worker process falls silent for good
  double restart_s = 5;    // of a process, until it says hello
  double slow_share = 0,
         slow_factor = 4;  // this share of the slots takes so many times longer for every step
  // disk
  double write_s = 0.001;  // of a payload
  double disk_slow_mean_s = 0, disk_slow_s = 30,
         disk_slow_factor = 100;  // for so long every write takes so many times longer
  double checkpoint_fails = 0;    // ENOSPC, EIO
  double checkpoint_s = 1;        // until it is written and read back
  // operator
  double stop_at_s = 0;               // SIGTERM, once
  double controller_kill_mean_s = 0;  // kill -9 of the controller, and with it of all workers
  double resume_s = 10;               // after a stop or a kill the run is started again so much later

  [[nodiscard]] bool any() const {
    return delay_spread > 0 || loss > 0 || duplicate > 0 || partition_mean_s > 0 || kill_mean_s > 0 ||
           hang_mean_s > 0 || slow_share > 0 || disk_slow_mean_s > 0 || checkpoint_fails > 0 ||
           stop_at_s > 0 || controller_kill_mean_s > 0;
  }
};

}  // namespace tidepool
