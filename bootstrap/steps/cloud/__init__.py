"""Steps of cloud machines, which set themselves up. What differs between clouds comes from `desired.cloud`."""
