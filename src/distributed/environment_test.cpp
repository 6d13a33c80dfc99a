#include "distributed/environment.h"

#include <gtest/gtest.h>

#include <map>

#include "core/error.h"
#include "distributed/slurm.h"

namespace flowshard::distributed {
namespace {

using Values = std::map<std::string, std::string>;

Environment read(const Values& values) {
  return Environment::from_variables([&](const std::string& name) {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional<std::string>(found->second);
  });
}

Values torchrun(const Values& changes = {}, const std::vector<std::string>& removed = {}) {
  Values values{{"RANK", "3"},
                {"WORLD_SIZE", "4"},
                {"LOCAL_RANK", "1"},
                {"LOCAL_WORLD_SIZE", "2"},
                {"MASTER_ADDR", "gpu-1"},
                {"MASTER_PORT", "29500"},
                {"TORCHELASTIC_RUN_ID", "7"},
                {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  for (const auto& [name, value] : changes) {
    values[name] = value;
  }
  for (const std::string& name : removed) {
    values.erase(name);
  }
  return values;
}

Values srun(const Values& changes = {}, const std::vector<std::string>& removed = {}) {
  Values values{{"SLURM_PROCID", "4"},
                {"SLURM_NTASKS", "5"},
                {"SLURM_LOCALID", "0"},
                {"SLURM_NODEID", "2"},
                {"SLURM_STEP_ID", "1"},
                {"SLURM_JOB_ID", "12345"},
                {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"},
                {"SLURM_STEP_NODELIST", "gpu[07-08,12]"}};
  for (const auto& [name, value] : changes) {
    values[name] = value;
  }
  for (const std::string& name : removed) {
    values.erase(name);
  }
  return values;
}

// The text of the ConfigError that `values` cause.
std::string complaint(const Values& values) {
  try {
    read(values);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

void expect_complaint(const Values& values, const std::vector<std::string>& words) {
  const std::string text = complaint(values);
  for (const std::string& word : words) {
    EXPECT_NE(text.find(word), std::string::npos) << "'" << word << "' is not in: " << text;
  }
}

TEST(Environment, NothingSetIsOneProcess) {
  const Environment environment = read({{"PATH", "/bin"}});
  EXPECT_EQ(environment.world_size, 1);
  EXPECT_EQ(environment.rank, 0);
  EXPECT_EQ(environment.master_addr, "");
}

TEST(Environment, ReadsTorchrun) {
  const Environment environment = read(torchrun());
  EXPECT_EQ(environment.rank, 3);
  EXPECT_EQ(environment.world_size, 4);
  EXPECT_EQ(environment.local_rank, 1);
  EXPECT_EQ(environment.local_world_size, 2);
  EXPECT_EQ(environment.master_addr, "gpu-1");
  EXPECT_EQ(environment.master_port, 29500);
  EXPECT_TRUE(environment.use_agent_store);
  EXPECT_EQ(environment.job_id, "7");
}

TEST(Environment, OneProcessAHostNeedsNoLocalRank) {
  const Environment environment = read(torchrun({}, {"LOCAL_RANK", "LOCAL_WORLD_SIZE"}));
  EXPECT_EQ(environment.local_rank, 0);
  EXPECT_EQ(environment.local_world_size, 1);
}

TEST(Environment, WorldOfOneNeedsNoMaster) {
  EXPECT_EQ(read({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).world_size, 1);
}

TEST(Environment, TorchrunInsideSrunWins) {
  Values both = srun();
  both.merge(torchrun());
  EXPECT_EQ(read(both).rank, 3);
}

TEST(Environment, ListeningSocketIsForRankZeroOnly) {
  EXPECT_EQ(read(torchrun({{"FLOWSHARD_MASTER_LISTEN_FD", "9"}})).master_listen_fd, -1);
  EXPECT_EQ(read(torchrun({{"FLOWSHARD_MASTER_LISTEN_FD", "9"}, {"RANK", "0"}, {"LOCAL_RANK", "0"}}))
                .master_listen_fd,
            9);
}

// An incomplete environment is never a quiet run of one process.
TEST(Environment, NamesTheMissingVariable) {
  expect_complaint(torchrun({}, {"RANK"}), {"RANK"});
  expect_complaint(torchrun({}, {"WORLD_SIZE"}), {"WORLD_SIZE"});
  expect_complaint(torchrun({}, {"LOCAL_RANK"}), {"LOCAL_RANK is not set"});
  expect_complaint(torchrun({}, {"LOCAL_WORLD_SIZE"}), {"LOCAL_WORLD_SIZE is not set"});
  expect_complaint(torchrun({}, {"MASTER_ADDR"}), {"MASTER_ADDR is not set"});
  expect_complaint(torchrun({}, {"MASTER_PORT"}), {"MASTER_PORT is not set"});
  expect_complaint({{"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "29500"}}, {"MASTER_ADDR is set", "RANK"});
  expect_complaint({{"LOCAL_RANK", "0"}}, {"LOCAL_RANK is set"});
}

TEST(Environment, NamesTheMalformedValue) {
  expect_complaint(torchrun({{"WORLD_SIZE", "0"}}), {"WORLD_SIZE=0"});
  expect_complaint(torchrun({{"WORLD_SIZE", "-2"}}), {"WORLD_SIZE=-2"});
  expect_complaint(torchrun({{"WORLD_SIZE", "4 "}}), {"WORLD_SIZE='4 '"});
  expect_complaint(torchrun({{"WORLD_SIZE", "99999999999"}}), {"WORLD_SIZE='99999999999'"});
  expect_complaint(torchrun({{"RANK", "4"}}), {"RANK=4", "between 0 and 3"});
  expect_complaint(torchrun({{"RANK", "one"}}), {"RANK='one'"});
  expect_complaint(torchrun({{"RANK", ""}}), {"RANK is empty"});
  expect_complaint(torchrun({{"LOCAL_RANK", "2"}}), {"LOCAL_RANK=2"});
  expect_complaint(torchrun({{"LOCAL_WORLD_SIZE", "5"}}), {"LOCAL_WORLD_SIZE=5"});
  expect_complaint(torchrun({{"MASTER_PORT", "70000"}}), {"MASTER_PORT=70000"});
  expect_complaint(torchrun({{"MASTER_ADDR", ""}}), {"MASTER_ADDR is empty"});
  expect_complaint(torchrun({{"TORCHELASTIC_USE_AGENT_STORE", "perhaps"}}), {"AGENT_STORE='perhaps'"});
}

TEST(Environment, ReadsAnSrunStep) {
  const Environment environment = read(srun());
  EXPECT_EQ(environment.rank, 4);
  EXPECT_EQ(environment.world_size, 5);
  EXPECT_EQ(environment.local_rank, 0);
  EXPECT_EQ(environment.local_world_size, 1);
  EXPECT_EQ(environment.master_addr, "gpu07");
  EXPECT_EQ(environment.master_port, 22346);
  EXPECT_EQ(environment.job_id, "slurm-12345.1");
}

TEST(Environment, SrunTakesAGivenMaster) {
  const Environment environment = read(srun({{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "1234"}}));
  EXPECT_EQ(environment.master_addr, "10.0.0.1");
  EXPECT_EQ(environment.master_port, 1234);
}

TEST(Environment, NamesTheMalformedSlurmVariable) {
  expect_complaint(srun({{"SLURM_PROCID", "5"}}), {"SLURM_PROCID=5"});
  expect_complaint(srun({}, {"SLURM_NTASKS"}), {"SLURM_NTASKS is not set"});
  expect_complaint(srun({{"SLURM_STEP_TASKS_PER_NODE", "two"}}), {"SLURM_STEP_TASKS_PER_NODE='two'"});
  expect_complaint(srun({{"SLURM_LOCALID", "1"}}), {"SLURM_LOCALID=1"});
}

TEST(Environment, BatchScriptWithoutSrunIsNotAQuietSingleProcess) {
  expect_complaint({{"SLURM_NTASKS", "2"}, {"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "9"}}, {"srun"});
}

const Values kOpenMpi{{"OMPI_COMM_WORLD_RANK", "3"},
                      {"OMPI_COMM_WORLD_SIZE", "4"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                      {"PMIX_RANK", "3"},
                      {"PMIX_NAMESPACE", "1902313473"},
                      {"MASTER_ADDR", "gpu-1"},
                      {"MASTER_PORT", "29500"}};
const Values kHydra{{"PMI_RANK", "3"},        {"PMI_SIZE", "4"},        {"MPI_LOCALRANKID", "1"},
                    {"MPI_LOCALNRANKS", "2"}, {"MASTER_ADDR", "gpu-1"}, {"MASTER_PORT", "29500"}};

Values with(Values values, const Values& changes, const std::vector<std::string>& removed = {}) {
  for (const auto& [name, value] : changes) {
    values[name] = value;
  }
  for (const std::string& name : removed) {
    values.erase(name);
  }
  return values;
}

TEST(Environment, ReadsMpirun) {
  for (const Values& values : {kOpenMpi, kHydra, with(srun(), kOpenMpi), with(srun(), kHydra)}) {
    const Environment environment = read(values);
    EXPECT_EQ(environment.rank, 3);
    EXPECT_EQ(environment.world_size, 4);
    EXPECT_EQ(environment.local_rank, 1);
    EXPECT_EQ(environment.local_world_size, 2);
    EXPECT_EQ(environment.master_addr, "gpu-1");
    EXPECT_EQ(environment.master_port, 29500);
  }
}

TEST(Environment, NamesWhatIsMissingUnderMpirun) {
  for (const Values& values : {kOpenMpi, kHydra}) {
    expect_complaint(with(values, {}, {"MASTER_ADDR"}), {"mpirun started 4 ranks", "MASTER_ADDR"});
    expect_complaint(with(values, {}, {"MASTER_PORT"}), {"mpirun started 4 ranks", "MASTER_PORT"});
  }
  expect_complaint(with(kOpenMpi, {}, {"OMPI_COMM_WORLD_SIZE"}), {"OMPI_COMM_WORLD_SIZE is not set"});
  expect_complaint(with(kHydra, {}, {"PMI_RANK"}), {"PMI_RANK is not set"});
  expect_complaint(with(kHydra, {}, {"MPI_LOCALNRANKS"}), {"MPI_LOCALNRANKS is not set"});
  expect_complaint(with(kHydra, {}, {"MPI_LOCALRANKID", "MASTER_ADDR", "MASTER_PORT"}),
                   {"PMI_SIZE=4", "mpirun"});
  expect_complaint({{"PMIX_RANK", "0"}}, {"PMIX_RANK=0", "how many"});
  expect_complaint({{"PMI_RANK", "1"}}, {"PMI_RANK=1", "how many"});
  expect_complaint({{"OMPI_COMM_WORLD_SIZE", "2"}}, {"OMPI_COMM_WORLD_SIZE=2", "which rank"});
  EXPECT_EQ(read({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}).world_size, 1);
}

TEST(Environment, SrunWithPmiIsAnSrunStep) {
  EXPECT_EQ(read(with(srun(), {{"PMI_RANK", "4"}, {"PMI_SIZE", "5"}})).job_id, "slurm-12345.1");
}

TEST(Environment, RanksSetByHandAgreeWithTheLauncher) {
  const Values by_hand = torchrun({}, {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"});
  expect_complaint(with(by_hand, srun()), {"RANK=3 of WORLD_SIZE=4", "SLURM_PROCID=4 of SLURM_NTASKS=5"});
  expect_complaint(with(by_hand, kOpenMpi, {}), {"no error"});
  expect_complaint(with(with(by_hand, kOpenMpi), {{"OMPI_COMM_WORLD_RANK", "2"}}),
                   {"RANK=3 of WORLD_SIZE=4", "OMPI_COMM_WORLD_RANK=2 of OMPI_COMM_WORLD_SIZE=4"});
  expect_complaint(with(with(by_hand, kHydra), {{"PMI_SIZE", "8"}}), {"RANK=3", "PMI_RANK=3 of PMI_SIZE=8"});
  EXPECT_EQ(read(with(by_hand, srun({{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "4"}}))).rank, 3);
  EXPECT_EQ(read(with(by_hand, srun({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}}))).rank, 3);
}

TEST(Environment, ReadsAKubernetesPyTorchJob) {
  const Values pod{{"RANK", "1"},
                   {"WORLD_SIZE", "2"},
                   {"MASTER_ADDR", "job-master-0"},
                   {"MASTER_PORT", "23456"},
                   {"PET_NNODES", "2"},
                   {"PET_NPROC_PER_NODE", "auto"}};
  const Environment environment = read(pod);
  EXPECT_EQ(environment.rank, 1);
  EXPECT_EQ(environment.local_rank, 0);
  EXPECT_EQ(environment.master_addr, "job-master-0");
  expect_complaint(with(pod, {{"PET_NPROC_PER_NODE", "8"}, {"WORLD_SIZE", "16"}}),
                   {"PET_NPROC_PER_NODE=8", "torchrun"});
  expect_complaint({{"PET_NNODES", "2"}, {"PET_NODE_RANK", "0"}, {"PET_MASTER_ADDR", "a"}},
                   {"PET_NNODES=2", "torchrun"});
}

TEST(Environment, EveryRankHasAGpuOfItsOwn) {
  const Environment environment = read(torchrun());  // LOCAL_RANK=1
  EXPECT_EQ(gpu_of(environment, 2), 1);
  EXPECT_THROW(gpu_of(environment, 1), ConfigError);
  EXPECT_THROW(gpu_of(Environment(), 0), ConfigError);
}

TEST(Slurm, FirstHostOfAList) {
  EXPECT_EQ(first_host("gpu1"), "gpu1");
  EXPECT_EQ(first_host("gpu1,gpu2"), "gpu1");
  EXPECT_EQ(first_host("gpu[07-09,12],login"), "gpu07");
  EXPECT_EQ(first_host("r[3,5]n[10-12]-ib"), "r3n10-ib");
}

TEST(Slurm, TasksOfEachNode) {
  EXPECT_EQ(tasks_on_node("2(x3),1", 0), 2);
  EXPECT_EQ(tasks_on_node("2(x3),1", 2), 2);
  EXPECT_EQ(tasks_on_node("2(x3),1", 3), 1);
  EXPECT_THROW(tasks_on_node("2(x3),1", 4), ConfigError);
  EXPECT_THROW(tasks_on_node("", 0), ConfigError);
}

}  // namespace
}  // namespace flowshard::distributed
