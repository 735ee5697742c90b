"""Every kind of resource of a cluster on AWS: why it exists, what it costs, and which permissions it requires.

The pre-flight checks the caller's permissions with this table, and docs/aws.md shows it; a test compares it with the
resources of the examples.
"""

from __future__ import annotations

from dataclasses import dataclass

from cluster.spec import ClusterSpec
from infra.targets.aws.leftovers.permissions import SEARCH_ACTIONS
from infra.targets.aws.plan.budget import stops
from infra.targets.aws.resource_conditions import (
    Condition,
    has_efs_backups,
    has_extra_policies,
    has_flow_logs,
    has_monthly_budget,
    has_own_key,
    has_own_network,
    has_private_endpoints,
    has_state_snapshots,
    has_storage,
    has_way_out,
    is_linked_to_s3,
    is_placed,
)


@dataclass(frozen=True)
class Kind:
    """A kind of resource."""

    type: str
    """Pulumi's type, without the provider's name."""
    why: str
    actions: str
    """IAM actions to create, read, update and delete it: `service: Action Action`, `;` between services."""
    prices: tuple[str, ...] = ()
    """Entries of the price table; none if it is free."""
    when: Condition = lambda _: True
    """Whether a spec has resources of this kind."""

    @property
    def required_actions(self) -> tuple[str, ...]:
        services = (part.partition(":") for part in self.actions.split(";") if part.strip())
        return tuple(f"{service.strip()}:{action}" for service, _, names in services for action in names.split())


def kinds(spec: ClusterSpec) -> tuple[Kind, ...]:
    """Return the kinds of resources that a spec has."""
    return tuple(kind for kind in KINDS if kind.when(spec))


def actions(spec: ClusterSpec) -> tuple[str, ...]:
    """Return the IAM actions that `up` and `teardown` of a spec require."""
    return tuple(sorted({action for kind in kinds(spec) for action in kind.required_actions} | set(EVERY_STACK)))


# Nearly every resource is tagged, when it is created or later.
_TAGGING = ("ec2:CreateTags", "ec2:DeleteTags", "ec2:DescribeTags", "tag:GetResources")
EVERY_STACK = (*_TAGGING, *SEARCH_ACTIONS)
"""IAM actions that every stack requires, besides those of its resources."""

KINDS: tuple[Kind, ...] = (
    Kind(
        "ec2/vpc:Vpc",
        "a separate network: the account's other networks cannot reach the nodes",
        "ec2: CreateVpc DescribeVpcs DescribeVpcAttribute ModifyVpcAttribute DeleteVpc",
        when=has_own_network,
    ),
    Kind(
        "ec2/defaultSecurityGroup:DefaultSecurityGroup",
        "the group that AWS creates with every VPC, without rules: a resource without its own group has no connections",
        "ec2: DescribeSecurityGroups RevokeSecurityGroupIngress RevokeSecurityGroupEgress",
        when=has_own_network,
    ),
    Kind(
        "ec2/subnet:Subnet",
        "one private subnet per zone for all nodes; one small public subnet, only for the NAT gateway",
        "ec2: CreateSubnet DescribeSubnets ModifySubnetAttribute DeleteSubnet",
        when=has_own_network,
    ),
    Kind(
        "ec2/internetGateway:InternetGateway",
        "connects the NAT gateway to the internet",
        "ec2: CreateInternetGateway AttachInternetGateway DescribeInternetGateways DetachInternetGateway"
        " DeleteInternetGateway",
        when=has_way_out,
    ),
    Kind(
        "ec2/eip:Eip",
        "the NAT gateway's address, which others can put on their allow lists",
        "ec2: AllocateAddress DescribeAddresses DescribeAddressesAttribute DisassociateAddress ReleaseAddress",
        ("public-ipv4",),
        has_way_out,
    ),
    Kind(
        "ec2/natGateway:NatGateway",
        "nodes fetch packages and data sets, nothing outside can open a connection; not with `network.egress: false`",
        "ec2: CreateNatGateway DescribeNatGateways DeleteNatGateway",
        ("nat-gateway", "nat-gateway-data"),
        has_way_out,
    ),
    Kind(
        "ec2/routeTable:RouteTable",
        "routes of the private subnets, and of the public one",
        "ec2: CreateRouteTable DescribeRouteTables DeleteRouteTable",
        when=has_own_network,
    ),
    Kind(
        "ec2/route:Route",
        "from private subnets to the NAT gateway, and from the public one to the internet gateway",
        "ec2: CreateRoute ReplaceRoute DeleteRoute",
        when=has_way_out,
    ),
    Kind(
        "ec2/routeTableAssociation:RouteTableAssociation",
        "assigns route tables to subnets",
        "ec2: AssociateRouteTable ReplaceRouteTableAssociation DisassociateRouteTable",
        when=has_own_network,
    ),
    Kind(
        "ec2/vpcEndpoint:VpcEndpoint",
        "S3 without the NAT gateway (free), and Systems Manager, through which people log in",
        "ec2: CreateVpcEndpoint DescribeVpcEndpoints DescribePrefixLists ModifyVpcEndpoint DeleteVpcEndpoints;"
        "route53: AssociateVPCWithHostedZone",
        ("interface-endpoint",),
        has_private_endpoints,
    ),
    Kind(
        "ec2/flowLog:FlowLog",
        "logs accepted and refused connections; not with `network.flow_logs: false`",
        "ec2: CreateFlowLogs DescribeFlowLogs DeleteFlowLogs; iam: PassRole",
        when=has_flow_logs,
    ),
    Kind(
        "cloudwatch/logGroup:LogGroup",
        "keeps the flow log for 30 days",
        "logs: CreateLogGroup DescribeLogGroups ListTagsForResource TagResource PutRetentionPolicy AssociateKmsKey"
        " DeleteLogGroup",
        ("cloudwatch-logs",),
        has_flow_logs,
    ),
    Kind(
        "ec2/securityGroup:SecurityGroup",
        "which of nodes, controller, login, storage and endpoints may connect; no inbound rule from outside",
        "ec2: CreateSecurityGroup DescribeSecurityGroups DescribeNetworkInterfaces RevokeSecurityGroupEgress"
        " DeleteSecurityGroup",
    ),
    Kind(
        "vpc/securityGroupIngressRule:SecurityGroupIngressRule",
        "one resource per rule, so that changes are easy to read; EFA requires a rule from the group to itself",
        "ec2: AuthorizeSecurityGroupIngress DescribeSecurityGroupRules ModifySecurityGroupRules"
        " RevokeSecurityGroupIngress",
    ),
    Kind(
        "vpc/securityGroupEgressRule:SecurityGroupEgressRule",
        "the same for outbound connections",
        "ec2: AuthorizeSecurityGroupEgress DescribeSecurityGroupRules ModifySecurityGroupRules"
        " RevokeSecurityGroupEgress",
    ),
    Kind(
        "kms/key:Key",
        "encrypts disks, files, secrets and logs; not with `aws.kms_key`, which names an existing key",
        "kms: CreateKey DescribeKey GetKeyPolicy PutKeyPolicy GetKeyRotationStatus EnableKeyRotation ListResourceTags"
        " TagResource UpdateKeyDescription ScheduleKeyDeletion",
        ("kms-key",),
        has_own_key,
    ),
    Kind("kms/alias:Alias", "its name", "kms: CreateAlias ListAliases UpdateAlias DeleteAlias", when=has_own_key),
    Kind(
        "ssm/parameter:Parameter",
        "Slurm's key, host keys and the database password as SecureString; no secret is in user data or unencrypted in"
        " the state",
        "ssm: PutParameter GetParameter GetParameters DescribeParameters AddTagsToResource ListTagsForResource"
        " DeleteParameter; kms: Encrypt Decrypt",
    ),
    Kind(
        "s3/bucket:Bucket",
        "holds what nodes fetch: code, templates, the cluster's description",
        "s3: CreateBucket ListBucket GetBucketAcl GetBucketCORS GetBucketLocation GetBucketLogging"
        " GetBucketObjectLockConfiguration GetBucketPolicy GetBucketRequestPayment GetBucketTagging GetBucketVersioning"
        " GetBucketWebsite GetAccelerateConfiguration GetReplicationConfiguration PutBucketTagging DeleteBucket",
        ("s3-standard",),
    ),
    Kind(
        "s3/bucketPublicAccessBlock:BucketPublicAccessBlock",
        "the bucket cannot be made public",
        "s3: PutBucketPublicAccessBlock GetBucketPublicAccessBlock",
    ),
    Kind(
        "s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration",
        "encrypted with the cluster's key",
        "s3: PutEncryptionConfiguration GetEncryptionConfiguration",
    ),
    Kind(
        "s3/bucketVersioning:BucketVersioning",
        "overwritten objects stay readable for a week",
        "s3: PutBucketVersioning GetBucketVersioning",
    ),
    Kind(
        "s3/bucketPolicy:BucketPolicy",
        "refuses requests without TLS",
        "s3: PutBucketPolicy GetBucketPolicy DeleteBucketPolicy",
    ),
    Kind(
        "s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration",
        "deletes old versions",
        "s3: PutLifecycleConfiguration GetLifecycleConfiguration",
    ),
    Kind(
        "s3/bucketObjectv2:BucketObjectv2",
        "the bundle under its own hash, and the list of options to launch nodes",
        "s3: PutObject GetObject PutObjectTagging GetObjectTagging DeleteObject DeleteObjectVersion ListBucketVersions;"
        "kms: GenerateDataKey Decrypt",
    ),
    Kind(
        "fsx/lustreFileSystem:LustreFileSystem",
        "FSx for Lustre, PERSISTENT_2: checkpoints and data at the combined speed of all its servers",
        "fsx: CreateFileSystem DescribeFileSystems UpdateFileSystem ListTagsForResource TagResource DeleteFileSystem;"
        "iam: CreateServiceLinkedRole",
        ("fsx-lustre-125", "fsx-lustre-250", "fsx-lustre-500", "fsx-lustre-1000"),
        has_storage("fsx-lustre"),
    ),
    Kind(
        "fsx/dataRepositoryAssociation:DataRepositoryAssociation",
        "the bucket of `storage.*.s3` as files; changes go in both directions, deletions only to the files",
        "fsx: CreateDataRepositoryAssociation DescribeDataRepositoryAssociations UpdateDataRepositoryAssociation"
        " DeleteDataRepositoryAssociation; iam: AttachRolePolicy PutRolePolicy CreateServiceLinkedRole",
        when=is_linked_to_s3,
    ),
    Kind(
        "efs/fileSystem:FileSystem",
        "EFS: many small files, paid by what is stored",
        "elasticfilesystem: CreateFileSystem DescribeFileSystems DescribeLifecycleConfiguration"
        " PutLifecycleConfiguration ListTagsForResource TagResource UpdateFileSystem DeleteFileSystem",
        ("efs",),
        has_storage("efs"),
    ),
    Kind(
        "efs/fileSystemPolicy:FileSystemPolicy",
        "requires TLS, and access through the mount targets",
        "elasticfilesystem: PutFileSystemPolicy DescribeFileSystemPolicy",
        when=has_storage("efs"),
    ),
    Kind(
        "efs/backupPolicy:BackupPolicy",
        "daily backups, with `storage.*.backup_days`: AWS Backup keeps them for 35 days, also after teardown",
        "elasticfilesystem: PutBackupPolicy DescribeBackupPolicy; iam: CreateServiceLinkedRole",
        ("efs-backup",),
        has_efs_backups,
    ),
    Kind(
        "efs/mountTarget:MountTarget",
        "its address in each zone",
        "elasticfilesystem: CreateMountTarget DescribeMountTargets DescribeMountTargetSecurityGroups"
        " ModifyMountTargetSecurityGroups DeleteMountTarget;"
        "ec2: DescribeSubnets CreateNetworkInterface DescribeNetworkInterfaces DeleteNetworkInterface",
        when=has_storage("efs"),
    ),
    Kind(
        "route53/zone:Zone",
        "names of the nodes, private to the VPC: `<node>.<cluster>.muster.internal`",
        "route53: CreateHostedZone GetHostedZone GetChange ListTagsForResource ChangeTagsForResource"
        " ListResourceRecordSets DeleteHostedZone; ec2: DescribeVpcs",
        ("route53-zone",),
    ),
    Kind(
        "route53/record:Record",
        "names of controller and login; compute nodes get theirs when they are launched",
        "route53: ChangeResourceRecordSets GetChange ListResourceRecordSets",
    ),
    Kind(
        "iam/role:Role",
        "one per kind of machine, with as few permissions as AWS can express; with `aws.policies.jobs` one for users",
        "iam: CreateRole GetRole TagRole UpdateRole UpdateAssumeRolePolicy PutRolePermissionsBoundary ListRolePolicies"
        " ListAttachedRolePolicies ListInstanceProfilesForRole DeleteRole",
    ),
    Kind(
        "iam/rolePolicy:RolePolicy",
        "the permissions of each role, listed in the table below",
        "iam: PutRolePolicy GetRolePolicy DeleteRolePolicy",
    ),
    Kind(
        "iam/rolePolicyAttachment:RolePolicyAttachment",
        "policies of `aws.policies`, which the spec adds to roles",
        "iam: AttachRolePolicy DetachRolePolicy ListAttachedRolePolicies",
        when=has_extra_policies,
    ),
    Kind(
        "iam/instanceProfile:InstanceProfile",
        "assigns a role to a machine",
        "iam: CreateInstanceProfile GetInstanceProfile TagInstanceProfile AddRoleToInstanceProfile"
        " RemoveRoleFromInstanceProfile DeleteInstanceProfile",
    ),
    Kind(
        "ec2/networkInterface:NetworkInterface",
        "fixed addresses of controller and login, which outlive the machine",
        "ec2: CreateNetworkInterface DescribeNetworkInterfaces ModifyNetworkInterfaceAttribute DeleteNetworkInterface",
    ),
    Kind(
        "ebs/volume:Volume",
        "Slurm's state and accounting; outlives the controller's machine",
        "ec2: CreateVolume DescribeVolumes ModifyVolume DeleteVolume",
        ("ebs-gp3",),
    ),
    Kind(
        "dlm/lifecyclePolicy:LifecyclePolicy",
        "daily snapshots of that volume, with `aws.state_backup_days`; they outlive the cluster",
        "dlm: CreateLifecyclePolicy GetLifecyclePolicy UpdateLifecyclePolicy DeleteLifecyclePolicy TagResource;"
        "iam: PassRole",
        ("ebs-snapshot",),
        has_state_snapshots,
    ),
    Kind(
        "ec2/volumeAttachment:VolumeAttachment",
        "attaches that volume to the controller",
        "ec2: AttachVolume DescribeVolumes DescribeInstances DetachVolume",
    ),
    Kind(
        "ec2/launchTemplate:LaunchTemplate",
        "what a node of a group is, one per kind of purchase: network interfaces, disk, role, IMDSv2 only",
        "ec2: CreateLaunchTemplate CreateLaunchTemplateVersion DescribeLaunchTemplates DescribeLaunchTemplateVersions"
        " ModifyLaunchTemplate DeleteLaunchTemplate; iam: PassRole",
    ),
    Kind(
        "ec2/placementGroup:PlacementGroup",
        "puts the nodes of a group close together, where the fabric benefits and the purchase allows it",
        "ec2: CreatePlacementGroup DescribePlacementGroups DeletePlacementGroup",
        when=is_placed,
    ),
    Kind(
        "ec2/instance:Instance",
        "controller and login; AWS restarts them on other hardware if theirs fails",
        "ec2: RunInstances DescribeInstances DescribeInstanceTypes DescribeInstanceAttribute DescribeVolumes"
        " DescribeImages ModifyInstanceAttribute StopInstances StartInstances TerminateInstances; iam: PassRole",
        ("ebs-gp3",),
    ),
    Kind(
        "budgets/budget:Budget",
        "counts the monthly cost of the cluster's tag, and sends e-mails",
        "budgets: ViewBudget ModifyBudget ListTagsForResource TagResource",
        when=has_monthly_budget,
    ),
    Kind(
        "iam/policy:Policy",
        "denies launches; the budget attaches it to the controller's role when it is spent",
        "iam: CreatePolicy GetPolicy GetPolicyVersion ListPolicyVersions TagPolicy DeletePolicy",
        when=stops,
    ),
    Kind(
        "budgets/budgetAction:BudgetAction",
        "attaches that policy automatically; AWS charges 0.10 USD a day for each budget with actions, except the first "
        "two of an account (unverified)",
        "budgets: CreateBudgetAction DescribeBudgetAction UpdateBudgetAction DeleteBudgetAction; iam: PassRole",
        when=stops,
    ),
    Kind(
        "muster:AwsResolved",
        "looks up, once, what only AWS knows: account, images, a zone with every instance type",
        "sts: GetCallerIdentity; ssm: GetParameter;ec2: DescribeInstanceTypeOfferings DescribeSubnets DescribeVpcs",
    ),
    Kind(
        "muster:AwsHostKeys",
        "SSH host keys, generated in advance, so that the first connection is already verified",
        "",
    ),
    Kind("muster:ClusterSecrets", "Slurm's key, the database password, the SSH key of this stack", ""),
    Kind(
        "muster:ChangeGuard", "refuses a change that a running cluster does not allow, before anything is changed", ""
    ),
    Kind(
        "muster:aws:Nodes",
        "the compute nodes of a group: launches the static ones as Slurm would, and terminates all with the group",
        "ec2: RunInstances DescribeInstances TerminateInstances "
        "DescribeSpotInstanceRequests CancelSpotInstanceRequests DescribeImages DescribeSnapshots; iam: PassRole;"
        "route53: ChangeResourceRecordSets ListResourceRecordSets",
    ),
    Kind(
        "muster:AwsReported",
        "waits until nodes report that they are ready; fails with the step and log line of the first that failed",
        "ssm: GetParametersByPath SendCommand ListCommands DeleteParameters; ec2: DescribeInstances",
    ),
    Kind("muster:AwsAccess", "the files behind `muster ssh`: SSH through Session Manager", ""),
    Kind(
        "muster:AwsReadyGate",
        "a job across every node that always exists, before the cluster counts as ready",
        "ssm: SendCommand ListCommands GetCommandInvocation",
    ),
)
