#pragma once

// All of the public API: include this. docs/api.md has it on one page.

#include "weightcast/clock.h"
#include "weightcast/device.h"
#include "weightcast/device_buffer.h"
#include "weightcast/digest.h"
#include "weightcast/endpoint.h"
#include "weightcast/engine_state.h"
#include "weightcast/grant.h"
#include "weightcast/identity.h"
#include "weightcast/memory.h"
#include "weightcast/region.h"
#include "weightcast/registration.h"
#include "weightcast/rules.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"
#include "weightcast/tensor.h"
#include "weightcast/transfer.h"
#include "weightcast/version.h"
#include "weightcast/worker.h"
