#include "workers/cli/slurm_script.h"

#include <sstream>

#include "workers/cli/run_status.h"

namespace tidepool::workers {
namespace {

// Of a job that outlives a lost node (--no-kill): Slurm goes on with it too where that node had the batch
// script, and then nobody is there who would start a controller.
constexpr char kHost[] =
    R"sh(# A host that has had no sign of life of a controller for its patience (3) asks whether the node of this
# script is still one of the job's. If so, the script sees to the controller, and the host begins again. If
# not, Slurm has taken the node out of the job, with the script: the job goes back into the queue, and the run
# on. Where several hosts ask for that, the first one is heard: Slurm ends what it queues again, and whoever
# is left over finds another number of restarts. Slurm signals all processes of a step, so nothing is passed
# on. $1 to $5: program, run, slots, node of the script, restarts of the job.
host='told=0
trap "told=1" TERM
while [ "$told" = 0 ]; do
  "$1" host "$2" --slots "$3"; code=$?
  [ "$code" = 3 ] && [ "$told" = 0 ] || exit "$code"
  job=$(scontrol --oneliner show job "$SLURM_JOB_ID") nodes=
  [[ $job =~ \ NodeList=([^ ]+) ]] && nodes=$(scontrol show hostnames "${BASH_REMATCH[1]}" | tr "\n" " ")
  if [[ $job == *" JobState=RUNNING "* && $job == *" Restarts=$5 "* &&
        " $nodes" == *" $SLURMD_NODENAME "* && " $nodes" != *" $4 "* ]]; then
    echo "host $SLURMD_NODENAME: node $4 is lost, with the batch script; job $SLURM_JOB_ID is queued again" \
      >> "$2.slurm-$SLURM_JOB_ID.log"  # srun, which would carry it there, is lost, too
    scontrol requeue "$SLURM_JOB_ID" && exit 0
  fi
  sleep 30
done'

)sh";

}  // namespace

std::string SlurmScript(const SlurmJob& job) {
  std::ostringstream out;
  out << "#!/bin/bash\n"
         "# Written by `tidepool slurm`. The controller runs on this node, one `tidepool host` on every "
         "node.\n"
      << "#SBATCH --job-name=" << job.name << "\n"
      << "#SBATCH --nodes=" << job.nodes << "\n"
      << "#SBATCH --ntasks-per-node=1\n"
      << "#SBATCH --cpus-per-task=" << job.threads_per_node << "\n";
  if (job.gpus) out << "#SBATCH --gpus-per-node=" << job.slots_per_node << "\n";
  if (!job.time_limit.empty()) out << "#SBATCH --time=" << job.time_limit << "\n";
  out << "#SBATCH --requeue\n"
         "#SBATCH --open-mode=append\n"
         "#SBATCH --signal=B:TERM@120\n";
  // Else Slurm ends the whole job when it loses a node, whatever srun was told of its step.
  if (job.may_lack) out << "#SBATCH --no-kill\n";
  out << "#SBATCH --output=" << job.run_dir << ".slurm-%j.log\n";
  for (const std::string& line : job.sbatch) out << "#SBATCH " << line << "\n";
  out << "set -u\n\n"
      << "tidepool=" << ShellWord(job.program) << "\n"
      << "run=" << ShellWord(job.run_dir) << "\n"
      << "train=(";
  for (const std::string& override : job.overrides) out << ShellWord(override) << " ";
  for (const std::string& override : job.of_hosts) out << ShellWord(override) << " ";
  out << "\"cluster.advertise=${SLURMD_NODENAME:-$(hostname)}\")\n\n"
         "# Before the time limit, and when the job is preempted, Slurm sends TERM to this shell alone.\n"
         "told=0 controller= code=0\n"
         "trap 'told=1; [ -n \"$controller\" ] && kill -TERM \"$controller\"' TERM\n\n"
      << (job.may_lack ? kHost : "")
      << "srun --no-kill --kill-on-bad-exit=0 --ntasks=\"$SLURM_NNODES\" --ntasks-per-node=1 --cpus-per-task="
      << job.threads_per_node << " \\\n"
      << (job.may_lack
              ? "  bash -c \"$host\" host \"$tidepool\" \"$run\" " + std::to_string(job.slots_per_node) +
                    " \"${SLURMD_NODENAME:-$(hostname)}\" \"${SLURM_RESTART_COUNT:-0}\""
              : "  \"$tidepool\" host \"$run\" --slots " + std::to_string(job.slots_per_node))
      << " &\n"
         "hosts=$!\n\n"
         "# A controller that failed, or was killed, goes on from its journal; one that is done, was told to "
         "end, or refuses\n"
         "# its input (2), or was taken over by another (4), does not. A signal ends a wait, so each is "
         "begun again while its process is "
         "there.\n"
         "for try in 1 2 3 4 5; do\n"
         "  [ \"$told\" = 0 ] || break\n"
         "  if [ -e \"$run/config.yaml\" ]; then\n"
         "    \"$tidepool\" train \"$run\" --resume --take-over \"${train[@]}\" &\n"
         "  else\n"
      << "    \"$tidepool\" train " << ShellWord(job.config)
      << " --run-dir \"$run\" \"${train[@]}\" &\n"
         "  fi\n"
         "  controller=$!\n"
         "  [ \"$told\" = 0 ] || kill -TERM \"$controller\"\n"
         "  wait \"$controller\"; code=$?\n"
         "  while kill -0 \"$controller\" 2>/dev/null; do wait \"$controller\"; code=$?; done\n"
         "  controller=\n"
         "  [ \"$code\" = 0 ] || [ \"$code\" = 2 ] || [ \"$code\" = 4 ] && break\n"
         "  [ \"$try\" = 5 ] || { sleep $((5 * try)) & wait $!; }\n"
         "done\n"
         "kill -TERM \"$hosts\" 2>/dev/null\n"
         "wait \"$hosts\" 2>/dev/null\n"
         "if [ \"$told\" = 1 ] && [ \"$code\" != 2 ] && [ \"$code\" != 4 ]; then\n"
         "  # Exit codes put a job back into the queue only where the administrator has said so.\n"
         "  scontrol requeue \"$SLURM_JOB_ID\"\n"
         "fi\n"
         "exit \"$code\"\n";
  return out.str();
}

}  // namespace tidepool::workers
