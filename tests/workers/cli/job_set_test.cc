// What `tidepool k8s` and `tidepool slurm` print and refuse. By the models of Kubernetes: tests/interop.
#include "workers/cli/job_set.h"

#include <gtest/gtest.h>

#include "tests/workers/cli/runner.h"
#include "workers/net/certificates.h"

namespace tidepool::workers {
namespace {

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

PodJob Job() {
  PodJob job;
  job.name = job.run = "a";
  job.image = "registry/tidepool:1";
  job.files = {{"c.yaml", "name: a\n\n"}};
  job.config = "c.yaml";
  return job;
}

TEST(JobSetTest, AControllerThatIsMadeAnewTakesOverAndOneThatWasTakenOverFailsNothing) {
  const std::string text = JobSetManifest(Job());
  EXPECT_EQ(Count(text, "--resume --take-over"), 1U) << text;
  EXPECT_EQ(Count(text, "maxFailedIndexes: 0"), 1U);
  EXPECT_EQ(Count(text, "- 4\n"), 2U);  // of both jobs, beside 75
}

TEST(JobSetTest, AConfigThatEndsInABlankLineIsPrintedAsABlock) {
  EXPECT_NE(JobSetManifest(Job()).find("c.yaml: |\n"), std::string::npos) << JobSetManifest(Job());
}

TEST(JobSetTest, CertificatesOfCertManagerNameThePagesForAllButTheOperator) {
  PodJob job = Job();
  job.certificates = PodCertificates::kCertManager;
  const std::string text = JobSetManifest(job);
  EXPECT_EQ(Count(text, kPagesName), 4U) << text;  // controller, device, reward, environment
}

TEST(JobSetTest, QuantitiesAndNamesAreThoseOfKubernetes) {
  for (const char* right : {"1", "64Gi", "1.5G", "100k", "2Ei", "1Ki"}) {
    PodJob job = Job();
    job.memory = right;
    EXPECT_TRUE(CheckPodJob(job).ok()) << right;
  }
  for (const char* wrong : {"64ki", "64K", "64gi", "64i", "Gi"}) {
    PodJob job = Job();
    job.memory = wrong;
    EXPECT_NE(CheckPodJob(job).message().find("--memory"), std::string::npos) << wrong;
  }
  for (const char* wrong : {"a..b", "A", "a-", "-a", "a.-b"}) {
    PodJob job = Job();
    job.claim = wrong;
    EXPECT_NE(CheckPodJob(job).message().find("--claim"), std::string::npos) << wrong;
  }
  for (const char* wrong : {"", "..", "-a", "a/b", "a b"}) {
    PodJob job = Job();
    job.run = wrong;
    EXPECT_NE(CheckPodJob(job).message().find("--run"), std::string::npos) << wrong;
  }
}

TEST(JobSetTest, OverridesOfWhatTheCommandSetsAreRefused) {
  const ScratchFolder scratch;
  for (const char* command : {"slurm", "k8s"}) {
    std::vector<std::string> words = {
        command, std::string(TIDEPOOL_SOURCE_DIR) + "/configs/test/rl_split.yaml", "-N", "2"};
    if (words[0] == "k8s") words.insert(words.end(), {"--image", "x"});
    EXPECT_EQ(RunCli(words).exit_code, 0) << RunCli(words).err;
    for (const char* key : {"cluster.slots=3", "cluster.bind=10.0.0.1", "cluster.advertise=h"}) {
      std::vector<std::string> with = words;
      with.emplace_back(key);
      const CliResult refused = RunCli(with);
      EXPECT_EQ(refused.exit_code, 2) << key;
      EXPECT_NE(refused.err.find(key), std::string::npos) << refused.err;
    }
    words.emplace_back("cluster.slots=3");
    EXPECT_NE(RunCli(words).err.find("-N and --slots"), std::string::npos);
  }
}

TEST(JobSetTest, WorkersWaitForTheNextControllerAsLongAsTheConfigSaysAndElseTwoMinutes) {
  const ScratchFolder scratch;
  const std::string config = std::string(TIDEPOOL_SOURCE_DIR) + "/configs/test/rl_split.yaml";
  const std::string own = scratch.path() + "/own.yaml";
  scratch.Write("own.yaml", "extends: " + config + "\ncluster: {reattach_grace_s: 7}\n");
  for (const char* command : {"slurm", "k8s"}) {
    const auto printed = [&](const std::string& file, std::vector<std::string> more) {
      std::vector<std::string> words = {command, file, "-N", "2"};
      if (words[0] == "k8s") words.insert(words.end(), {"--image", "x"});
      words.insert(words.end(), more.begin(), more.end());
      const CliResult result = RunCli(words);
      EXPECT_EQ(result.exit_code, 0) << result.err;
      return result.out;
    };
    EXPECT_EQ(Count(printed(config, {}), "cluster.reattach_grace_s=120"), 1U) << command;
    EXPECT_EQ(Count(printed(own, {}), "cluster.reattach_grace_s"), 0U) << command;
    const std::string zero = printed(config, {"cluster.reattach_grace_s=0"});
    EXPECT_EQ(Count(zero, "cluster.reattach_grace_s=0"), 1U) << command;
    EXPECT_EQ(Count(zero, "cluster.reattach_grace_s"), 1U) << command;
  }
}

TEST(JobSetTest, HostsThatTheRunGoesOnWithoutEndNoJob) {
  const ScratchFolder scratch;
  const auto printed = [](const char* command, const char* least) {
    std::vector<std::string> words = {
        command, std::string(TIDEPOOL_SOURCE_DIR) + "/configs/test/rl_split.yaml", "-N", "3", "--slots", "2"};
    if (words[0] == "k8s") words.insert(words.end(), {"--image", "x"});
    words.push_back(std::string("cluster.min_slots=") + least);
    const CliResult result = RunCli(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  struct Case {
    const char* least;
    int spare;
  };
  for (const Case& c : {Case{"0", 0}, Case{"6", 0}, Case{"5", 0}, Case{"4", 1}, Case{"3", 1}, Case{"2", 2}}) {
    EXPECT_EQ(Count(printed("slurm", c.least), "#SBATCH --no-kill\n"), c.spare > 0 ? 1U : 0U) << c.least;
    EXPECT_EQ(Count(printed("k8s", c.least), "maxFailedIndexes: " + std::to_string(c.spare) + "\n"), 1U)
        << c.least;
  }
}

}  // namespace
}  // namespace tidepool::workers
