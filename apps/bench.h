// The measurements of `flowshard bench`, one file each.
#pragma once

namespace CLI {
class App;
}

namespace flowshard::apps {

void add_bench_step(CLI::App& bench);

}  // namespace flowshard::apps
