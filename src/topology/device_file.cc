#include "topology/device_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "base/strings.h"

namespace weightcast::topology {

std::string ReasonNotOpened(const ibv_device& device, int error, std::string_view folder) {
  const std::string file = StrCat(folder, "/", device.dev_name);
  const bool there = faccessat(AT_FDCWD, file.c_str(), F_OK, 0) == 0;
  const bool open = there && faccessat(AT_FDCWD, file.c_str(), R_OK | W_OK, AT_EACCESS) == 0;
  if (open)
    return StrCat("cannot be opened: ", ErrnoText(error), "; check its driver with ibv_devinfo and dmesg");
  return there ? StrCat("cannot be opened: this user may not read and write ", file,
                        "; change its owner or mode")
               : StrCat("cannot be opened: ", ErrnoText(error), "; give this process ", file,
                        " (a container: --device /dev/infiniband)");
}

}  // namespace weightcast::topology
