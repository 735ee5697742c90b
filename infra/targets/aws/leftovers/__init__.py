"""The search for AWS resources that a cluster left behind: kinds of resource by service, and how to remove them."""
