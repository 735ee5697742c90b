"""IAM actions of the search for leftovers: it asks every service, whatever the stack has, and fails if one refuses."""

from __future__ import annotations

SEARCH_ACTIONS = (
    "budgets:ViewBudget",
    *(
        f"ec2:Describe{kind}"
        for kind in (
            "Addresses",
            "FlowLogs",
            "Images",
            "Instances",
            "InternetGateways",
            "LaunchTemplates",
            "NatGateways",
            "NetworkInterfaces",
            "PlacementGroups",
            "RouteTables",
            "SecurityGroups",
            "Snapshots",
            "SpotInstanceRequests",
            "Subnets",
            "Volumes",
            "VpcEndpoints",
            "Vpcs",
        )
    ),
    "elasticfilesystem:DescribeFileSystems",
    "fsx:DescribeFileSystems",
    "iam:GetInstanceProfile",
    "iam:ListInstanceProfiles",
    "iam:ListPolicies",
    "iam:ListPolicyTags",
    "iam:ListRoleTags",
    "iam:ListRoles",
    "logs:DescribeLogGroups",
    "route53:ListHostedZonesByName",
    "route53:ListTagsForResource",
    "s3:GetBucketTagging",
    "ssm:GetParametersByPath",
)
