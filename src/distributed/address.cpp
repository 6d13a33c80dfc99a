#include "distributed/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sstream>
#include <thread>

#include "core/error.h"

namespace flowshard::distributed {

namespace {

using std::chrono::milliseconds;
constexpr milliseconds kRetryDelay(50);

struct Socket {
  explicit Socket(int family) : fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {}
  ~Socket() { close(fd); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd;
};

std::string numeric(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST] = "";
  getnameinfo(address, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return text;
}

// Connects within `limit` and returns the local address, or returns an empty string and the reason.
std::string connect_once(const addrinfo& target, milliseconds limit, std::string& reason) {
  const Socket socket(target.ai_family);
  int error = connect(socket.fd, target.ai_addr, target.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    pollfd waiting{socket.fd, POLLOUT, 0};
    socklen_t length = sizeof(error);
    if (poll(&waiting, 1, static_cast<int>(limit.count())) <= 0) {
      error = ETIMEDOUT;
    } else {
      getsockopt(socket.fd, SOL_SOCKET, SO_ERROR, &error, &length);
    }
  }
  if (error != 0) {
    reason = std::strerror(error);
    return "";
  }
  sockaddr_storage local{};
  socklen_t length = sizeof(local);
  getsockname(socket.fd, reinterpret_cast<sockaddr*>(&local), &length);
  return numeric(reinterpret_cast<const sockaddr*>(&local), length);
}

}  // namespace

std::string wait_for_listener(const std::string& host, int port, Clock::time_point deadline) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  std::string reason;
  for (;;) {
    addrinfo* found = nullptr;
    const int failed = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
    if (failed) {
      reason = fmt::format("the name {} does not resolve: {}", host, gai_strerror(failed));
    }
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, freeaddrinfo);
    for (const addrinfo* target = found; target; target = target->ai_next) {
      const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
      std::string local =
          connect_once(*target, std::clamp(left, milliseconds(1), milliseconds(2000)), reason);
      if (!local.empty()) {
        return local;
      }
    }
    if (Clock::now() + kRetryDelay > deadline) {
      throw CommError("nothing listens on {}:{} ({})", host, port, reason);
    }
    std::this_thread::sleep_for(kRetryDelay);
  }
}

std::string reachable_address(const std::string& address, bool several_hosts) {
  if (!several_hosts || !(address.starts_with("127.") || address == "::1")) {
    return address;
  }
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) {
    return address;
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> interfaces(found, freeifaddrs);
  for (const ifaddrs* entry = found; entry; entry = entry->ifa_next) {
    const bool usable = (entry->ifa_flags & IFF_UP) && !(entry->ifa_flags & IFF_LOOPBACK);
    if (usable && entry->ifa_addr && entry->ifa_addr->sa_family == AF_INET) {
      return numeric(entry->ifa_addr, sizeof(sockaddr_in));
    }
  }
  return address;
}

std::vector<std::string> chosen_interfaces() {
  const char* variable = std::getenv("GLOO_SOCKET_IFNAME");
  std::istringstream text(variable ? variable : "");
  std::vector<std::string> names;
  for (std::string name; std::getline(text, name, ',');) {
    if (if_nametoindex(name.c_str()) == 0) {
      throw ConfigError("GLOO_SOCKET_IFNAME={}: this host has no network interface '{}'", variable, name);
    }
    names.push_back(name);
  }
  return names;
}

}  // namespace flowshard::distributed
