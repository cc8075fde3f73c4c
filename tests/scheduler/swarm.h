#pragma once
// Runs of the modelled cluster whose every rate is drawn from the seed: some have almost no faults, some
// almost all (TigerBeetle's method). Shared by the tests, `make swarm` and `make plants`.

#include <string>

#include "tests/scheduler/sim_cluster.h"

namespace tidepool::scheduler {

SimOptions Swarm(uint64_t seed);
SimOptions SwarmOfGangs(uint64_t seed);  // the same, with gangs of two slots
// The same with two slots a worker; every second seed has gangs as well.
SimOptions SwarmOfSlots(uint64_t seed);
// The same with an optimizer's state that the slots which train share, as far as a config allows it.
SimOptions SwarmOfShards(uint64_t seed);
// By a signal, with its last steps in a checkpoint or without: it can go on.
bool WasStopped(const SimResult& result);
// "" if the run ended as it may: all steps done, or early for one of the faults that were dealt out.
// Else what is wrong with its end (predicates L2, L4).
std::string Unexplained(const SimOptions& options, const SimResult& result);

}  // namespace tidepool::scheduler
