"""What a call does, by the trace of torch's profiler: that of other libraries, too, since it asks the driver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any


def traced(torch: Any, function: Callable[[], Any], place: str) -> tuple[Counter[str], Counter[str]]:
    """Return how often each name is in the trace of a call: what the host did, and what the device did."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if place == "cuda":
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    # Without acc_events, the first profile of a process may warn that it keeps the events of one cycle alone.
    with torch.profiler.profile(activities=kinds, acc_events=True) as profile:
        function()
        if place == "cuda":
            torch.cuda.synchronize()
    host: Counter[str] = Counter()
    device: Counter[str] = Counter()
    for event in profile.events():
        (host if event.device_type == torch.autograd.DeviceType.CPU else device)[event.name] += 1
    return host, device


def host_copies(device: Iterable[str]) -> list[str]:
    """Return the copies between device and host, which the profiler calls as in "Memcpy DtoH (Device -> Pageable)"."""
    return [name for name in device if name.startswith(("Memcpy DtoH", "Memcpy HtoD"))]
