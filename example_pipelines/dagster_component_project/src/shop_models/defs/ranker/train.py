"""What runs on every host of the slice; the first host speaks for all."""

import dagster as dg

from kinetic_orchestration import HostContext


def fit(host: HostContext, epochs: int) -> dg.MaterializeResult:
    print(f"host {host.host_index} of {host.host_count}")
    loss = 1.0
    for epoch in range(epochs):
        loss /= 2
        host.log_metrics(step=epoch, loss=loss)
        host.progress(epoch + 1, epochs, unit="epochs")
    return dg.MaterializeResult(
        metadata={"loss": loss},
        check_results=[dg.AssetCheckResult(check_name="learned", passed=loss < 0.5, metadata={"loss": loss})],
    )
