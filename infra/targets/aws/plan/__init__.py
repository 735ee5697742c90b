"""What a cluster on AWS consists of, from spec and catalog to data; no Pulumi and no AWS client here."""
