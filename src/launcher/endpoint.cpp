#include "launcher/endpoint.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <charconv>

#include "core/error.h"

namespace flowshard::launcher {

namespace {

constexpr int kBacklog = 1024;

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  in_port_t& port() {
    return storage.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(storage).sin6_port
                                         : reinterpret_cast<sockaddr_in&>(storage).sin_port;
  }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

SocketAddress own_address(int family, bool loopback) {
  SocketAddress address;
  address.storage.ss_family = static_cast<sa_family_t>(family);
  if (family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(address.storage).sin6_addr = loopback ? in6addr_loopback : in6addr_any;
    address.length = sizeof(sockaddr_in6);
  } else {
    reinterpret_cast<sockaddr_in&>(address.storage).sin_addr.s_addr =
        htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY);
    address.length = sizeof(sockaddr_in);
  }
  return address;
}

}  // namespace

Endpoint parse_endpoint(const std::string& text) {
  const size_t colon = text.rfind(':');
  Endpoint endpoint;
  const char* end = text.data() + text.size();
  const auto parsed =
      std::from_chars(colon == std::string::npos ? end : text.data() + colon + 1, end, endpoint.port);
  endpoint.host = text.substr(0, colon);
  if (endpoint.host.starts_with('[') && endpoint.host.ends_with(']')) {
    endpoint.host = endpoint.host.substr(1, endpoint.host.size() - 2);
  }
  if (parsed.ec != std::errc() || parsed.ptr != end || endpoint.port < 0 || endpoint.port > 65535 ||
      endpoint.host.empty()) {
    throw ConfigError("--rdzv_endpoint '{}' is not HOST:PORT", text);
  }
  return endpoint;
}

FileDescriptor listen_at(Endpoint& endpoint, bool this_host_only) {
  const int port = endpoint.port;
  // One socket serves IPv6 and IPv4, where the host has IPv6. On the loopback address IPv4 is enough.
  for (const int family : {AF_INET6, AF_INET}) {
    if (family == AF_INET6 && this_host_only) {
      continue;
    }
    FileDescriptor fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    SocketAddress address = own_address(family, this_host_only);
    address.port() = htons(static_cast<uint16_t>(port));
    const int yes = 1, no = 0;
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (family == AF_INET6) {
      setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
    }
    if (bind(fd.get(), address.get(), address.length) == 0 && listen(fd.get(), kBacklog) == 0) {
      getsockname(fd.get(), address.get(), &address.length);
      endpoint.port = ntohs(address.port());
      return fd;
    }
    if (errno == EADDRINUSE) {
      throw ConfigError("port {} is taken on this host: give another one in --rdzv_endpoint, or leave it out",
                        port);
    }
  }
  throw ConfigError("cannot listen on port {}: {}", port, error_text(errno));
}

}  // namespace flowshard::launcher
