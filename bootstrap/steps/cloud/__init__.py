"""Steps of cloud machines, which set themselves up. Differences between clouds are data in `desired.cloud`."""
